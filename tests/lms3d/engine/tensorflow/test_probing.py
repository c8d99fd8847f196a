"""The seconds of a single op, run alone: inputs that are cut, calls that count, and ops that cannot be measured."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.device import workspace
from lms3d.engine import tuning
from lms3d.engine.tensorflow import functions, probing, speeds
from lms3d.engine.tensorflow.capture import signature
from lms3d.engine.tensorflow.probing import Cost
from tests.lms3d.engine.traced import IMAGE, SIZE, convolution_step, of_type


@pytest.fixture(scope="module")
def step():
    return functions.trace(convolution_step, IMAGE)


@pytest.mark.parametrize(
    ("cores", "worked", "waited", "seconds", "share"),
    [
        (2, 1.0, 1.0, 0.5, 0.5),  # beside other processes
        (2, 1.9, 0.1, 1.0, 0.475),  # beside next to nothing
        (1, 1.0, 1.0, 0.5, 1.0),
        (1, 2.0, 2.0, 1.0, 1.0),  # bound to one core, all of which it had: two threads of its own in turn
        (2, 2.0, 0.0, 1.0, 0.5),  # an op of one thread
        (1, 2.0, 0.0, 1.0, 1.0),
        (4, 0.5, 0.0, None, None),  # held up by something else
    ],
)
def test_waiting_for_a_processor_that_others_had_is_taken_out(step, monkeypatch, cores, worked, waited, seconds, share):
    op, clock = of_type(step, "Conv3D"), iter([(0.0, 0.0), (worked, waited)])
    alone = probing.probe(op)
    monkeypatch.setattr(speeds, "cores", lambda: cores)
    monkeypatch.setattr(probing, "_processor_seconds", lambda: next(clock))
    monkeypatch.setattr(probing.time, "perf_counter", iter(range(1000)).__next__)  # each run takes a second
    assert alone is not None
    assert probing.probe(op) == (seconds and Cost(seconds, share, alone.workspace_bytes))


@pytest.fixture
def alone(monkeypatch):
    """Shapes of arguments and results of the ops that were run alone. Each runs, and counts as one second."""
    shapes: list[list[tuple[int, ...]]] = []
    run = probing._run

    def seen(function, specs, device, *, cold):
        run(function, specs, device, cold=cold)
        assert cold
        shapes.append([tuple(tensor.shape) for tensor in (*specs, *function.graph.outputs)])
        return Cost(1.0)

    monkeypatch.setattr(probing, "_run", seen)
    return shapes


@pytest.mark.parametrize(
    ("planes", "stride", "parts", "part"),
    [
        (34, 1, 2, 18), (34, 1, 4, 10), (65, 2, 2, 33), (66, 2, 2, 33),
        (32, 1, 4, None),  # it makes 30 planes, not 4 times as many
        (34, 1, 8, None),  # 8 parts would read 48 planes
    ],
)  # fmt: skip
def test_a_part_of_a_convolution_has_the_planes_that_its_window_reads(alone, planes, stride, parts, part):
    def forward_and_back(x):
        kernel = tf.ones((3, 3, 3, 4, 8))
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tf.nn.conv3d(x, kernel, [1, stride, stride, stride, 1], "VALID")
        return tape.gradient(y, [x, kernel])

    function = functions.trace(forward_and_back, tf.TensorSpec((1, planes, 35, 35, 4)))
    for kind in ("Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"):
        found = probing.probe(of_type(function, kind), parts)
        assert found == (part and Cost(parts, parts=parts))
        assert part is None or (1, part, 35, 35, 4) in alone[-1]


@pytest.mark.parametrize(
    ("build", "parts", "result"),
    [
        (lambda x: tf.concat([x[:, :8], x[:, 8:28]], 1), 4, (1, 7, 32, 32, 4)),
        (lambda x: tf.concat([x[:, :16], x[:, 1:]], 1), 8, (1, 47, 4, 32, 4)),  # planes cannot be cut
        (lambda x: tf.pad(x[:, :16], [[0, 0], [7, 8], [0, 0], [0, 0], [0, 0]]), 8, (1, 31, 4, 32, 4)),
    ],
    ids=["concat", "concat-odd", "pad"],
)
def test_a_part_of_an_op_is_as_large_as_it_counts(alone, build, parts, result):
    function = functions.trace(build, IMAGE)
    kind = "Pad" if result[1] == 31 else "ConcatV2"
    assert probing.probe(of_type(function, kind), parts) == Cost(parts, parts=parts)
    assert alone[-1][-1] == result


def test_a_part_is_read_from_memory_and_a_whole_op_as_it_comes(step, monkeypatch):
    read: list[int] = []
    monkeypatch.setattr(probing, "_read", lambda others: read.append(others.nbytes))
    probing.probe(of_type(step, "Conv3D"))
    assert read == []
    probing.probe(of_type(step, "Conv3D"), 2)
    assert set(read) == {tuning.CACHES_BYTES}
    assert len(read) > 2  # before each run


@pytest.mark.parametrize("op_type", ["Conv3D", "Conv3DBackpropInputV2", "Relu", "Sum"])
def test_a_probe_runs_an_op_of_a_step(step, op_type):
    cost = probing.probe(of_type(step, op_type))
    assert cost is not None
    assert cost.seconds > 0
    assert 0 < cost.share <= 1
    assert cost.workspace_bytes >= 0


@pytest.mark.parametrize("op_type", ["Conv3D", "Conv3DBackpropInputV2", "Relu"])
def test_a_part_counts_as_often_as_it_fits(step, op_type, monkeypatch):
    shapes = []

    def run(function, specs, device, *, cold):
        shapes.append([tuple(spec.shape) for spec in specs] + [tuple(t.shape) for t in function.graph.outputs])
        return Cost(0.2, 0.5, 100)

    monkeypatch.setattr(probing, "_run", run)
    assert probing.probe(of_type(step, op_type), 4, call_seconds=0.1) == Cost(pytest.approx(0.4), 0.5, 400, 4)
    assert (3, 3, 3, 4, 8) in shapes[0] or op_type == "Relu"
    assert [s[1] for s in shapes[0] if s[0] == 1] == [SIZE // 4] * 2


@pytest.mark.parametrize("parts", [1, 4])
def test_a_fused_normalisation_and_its_gradient_can_be_probed(parts):
    """They share a tensor of unknown shape."""

    def normalise(x):
        one = tf.ones(4)
        y = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=one, offset=one, mean=[], variance=[], is_training=True, data_format="NDHWC"
        ).y
        y.set_shape(x.shape)
        return tf.gradients(tf.reduce_sum(y * y), x)

    function = functions.trace(normalise, IMAGE)
    for op_type in ("FusedBatchNormV3", "FusedBatchNormGradV3"):
        op = of_type(function, op_type)
        assert signature(op)
        assert probing.probe(op, parts) is not None


def test_short_ops_run_many_times_in_one_call(step):
    function, _ = probing._alone(of_type(step, "Relu"), 1, 0, 5)
    assert sum(op.type == "Relu" for op in function.graph.get_operations()) == 5


# -- on a GPU, whose part the processor takes


@pytest.fixture
def gpu():
    """The name of one that is not there."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    yield "GPU:0"
    tf.config.set_soft_device_placement(before)


@pytest.mark.parametrize("op_type", ["Conv3D", "Conv3DBackpropInputV2", "Relu"])
def test_on_a_gpu_an_op_is_enqueued_many_times_before_a_wait(step, op_type, monkeypatch, gpu):
    """Each call is worth its copies, and the call itself is not subtracted."""
    counted = {"calls": 0, "waits": 0}
    each, wait = probing.queued.seconds_each, speeds.synchronise

    def seconds_each(start, wait):
        def counting():
            counted["calls"] += 1
            return start()

        each(counting, wait, clock=lambda: 1e-3 * counted["calls"])  # whatever else the machine does
        return 0.2

    monkeypatch.setattr(probing.queued, "seconds_each", seconds_each)
    monkeypatch.setattr(speeds, "synchronise", lambda: counted.update(waits=counted["waits"] + 1) or wait())
    cost = probing.probe(of_type(step, op_type), 2, 4, device=gpu)
    assert cost == Cost(pytest.approx(0.2 * 2 / 4), parts=2)
    assert counted["calls"] > counted["waits"] > 2


def test_on_a_gpu_every_op_takes_some_time(step, gpu):
    cost = probing.probe(of_type(step, "Relu"), times=20, device=gpu)
    assert cost is not None
    assert 1e-7 < cost.seconds < 1e-2


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16, tf.int32, tf.complex64, tf.bool])
def test_numbers_that_the_device_makes(dtype):
    made = probing._made_on_device(tf.TensorSpec((70, 1000), dtype))
    assert (made.shape, made.dtype) == ((70, 1000), dtype)
    assert not dtype.is_floating or 0.9 < float(tf.math.reduce_std(tf.cast(made, tf.float32))) < 1.1


def test_copies_in_one_call_reuse_the_workspace(step):
    """Also if calls are enqueued: a call gives its memory back before the next one takes it."""
    function, specs = probing._alone(of_type(step, "Conv3D"), 0, {}, 1)
    several, _ = probing._alone(of_type(step, "Conv3D"), 0, {}, 6)
    passed = [probing._numbers(spec) for spec in specs]
    one, many = (probing._run_behind(f, passed, "CPU:0").workspace_bytes for f in (function, several))
    output = function.graph.outputs[0]
    assert many < one + 2 * output.shape.num_elements() * output.dtype.size


@pytest.mark.parametrize(
    ("op_type", "device", "parts", "each", "too_good"),
    [
        ("Conv3D", "GPU:0", 4, 64, False),
        ("Conv3D", "GPU:0", 4, 65, True),
        ("Conv3D", "GPU:0", 1, 400, False),  # the whole op had it
        ("Sum", "GPU:0", 4, 65, False),  # not by cuDNN
        ("Conv3D", "CPU:0", 4, 65, False),
    ],
)
def test_parts_that_have_workspace_which_the_whole_would_not_have_say_nothing(
    monkeypatch, op_type, device, parts, each, too_good
):
    monkeypatch.setenv(workspace.VARIABLE, "256")
    cost = Cost(1.0, workspace_bytes=parts * each << 20, parts=parts)
    assert probing.is_too_good(cost, op_type, device) is too_good


def test_an_op_that_cannot_be_cut_keeps_its_estimate(step):
    assert probing.probe(of_type(step, "Sum"), 2**10) is None


def test_an_op_that_runs_out_of_memory_keeps_its_estimate(step, monkeypatch):
    def exhausted(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    monkeypatch.setattr(probing, "_run", exhausted)
    assert probing.probe(of_type(step, "Conv3D")) is None


def test_a_run_stays_below_the_bytes_and_seconds_that_it_may_take():
    assert probing.parts_of(0.01, 1 << 20, 1 << 20) == 1
    assert probing.parts_of(4 * tuning.RUN_SECONDS, 1 << 20, 1 << 20) == 4
    assert probing.parts_of(0.01, 3 << 20, 1 << 20) == 4
