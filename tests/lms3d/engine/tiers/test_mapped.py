"""Swapped tensors that are read in place: no memory, no copy, and nobody writes into them or keeps them."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.liveness import lasting
from lms3d.engine.plan import Plan, SwapIn, SwapOut
from lms3d.engine.planners import tflms
from lms3d.engine.planners.hybrid import floor, local_search, relaxation
from lms3d.engine.step_model import emit
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.tensorflow import functions, speeds
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers import disk
from lms3d.engine.tiers.disk import DiskTier
from lms3d.errors import StorageError
from tests.lms3d.engine.tiers.system_calls import LIBC, fails, replaced, resident
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, training
from tests.lms3d.engine.traced import SPEC, batch, by_tflms, chain, fork, rewrite, same_bits, u_net

MAPPED = replace(SECONDS, mapped=True)


@pytest.fixture
def tier(tmp_path):
    with_files = DiskTier(tmp_path)
    yield with_files
    with_files.close()


# -- what may be read in place ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "lasts"),
    [
        (op("r", "a", type="Conv3D"), True),  # same size, and nobody knows
        (op("r", "a", type="Conv3D", mib=2), False),
        (op("r", "a", type="Relu"), False),  # makes its own, since it may not write into this one
        (op("r", "a", type="AddN"), True),  # passes on a single input
        (op("r", "a", type="Transpose"), True),
        (op("r", "a", type="StridedSlice", mib=0.1), True),
        (op("r", "a", type="Mean", mib=0.1), False),
        (op("r", "a", type="Reshape"), True),
        (op("r", "a", type="Shape", mib=0.1), False),
        (op("r", "a", type="StatelessWhile", mib=2), True),
        (op("r", "a", type="InplaceAdd", mib=2), True),
    ],
)
def test_what_a_step_returns_may_be_a_part_of_a_tensor(reader, lasts):
    graph = step(placeholder(), op("a", "x"), reader, returned=["r"])
    assert ("a:0" in lasting(graph)) == lasts


def test_a_variable_may_share_what_it_is_assigned():
    graph = step(
        op("a"), op("same", "a", type="Identity"), op("assign", "same", type="AssignVariableOp", stateful=True)
    )
    assert lasting(graph) == {"a:0"}
    assert lasting(step(op("a"), op("seen", "a", type="Transpose"), op("b", "seen", mib=2))) == frozenset()


# -- the plan ----------------------------------------------------------------------------------------------------------


def two_passes():
    """`a` is read at once, and again at the end, when as much is made."""
    quick = [op(f"t{i}", f"t{i - 1}" if i else "a", mib=0.1) for i in range(8)]
    return step(placeholder(mib=0.1), op("a", "x", mib=4), *quick, op("b", "t7", "a", mib=4), op("z", "b", mib=0.1))


def test_a_mapped_copy_takes_no_memory():
    choices = {0: Choice(Mode.SWAP, tight_out=True)}
    live = [build(reduce(two_passes(), m), choices, m).live_bytes for m in (SECONDS, MAPPED)]
    assert [bytes_at[-2] for bytes_at in live] == [
        pytest.approx(8.0 * MIB, abs=0.3 * MIB),
        pytest.approx(4.0 * MIB, abs=0.3 * MIB),
    ]


def test_nobody_writes_into_a_mapped_copy():
    """A Relu takes the memory of an input that ends with it; of a mapped one there is none."""
    quick = [op(f"t{i}", f"t{i - 1}" if i else "a", mib=0.1) for i in range(8)]
    graph = step(
        placeholder(mib=0.1),
        op("a", "x", mib=4),
        *quick,
        op("b", "a", "t7", mib=4, type="AddV2"),
        op("z", "b", mib=0.1),
    )
    for machine in (SECONDS, MAPPED):
        problem = reduce(graph, machine)
        a, b = (next(i for i, x in enumerate(problem.buffers) if x.root == name) for name in ("a:0", "b:0"))
        schedule = build(problem, {a: Choice(Mode.SWAP, tight_out=True)}, machine)
        at = next(i for i, e in enumerate(schedule.events) if e.is_anchor and e.anchor == problem.buffers[b].defined)
        assert schedule.live_bytes[at] == pytest.approx(4 * MIB, abs=0.3 * MIB)
        assert [c.heir is not None for c in schedule.copies if c.buffer == a and c.number] == [machine is SECONDS]


def test_a_copy_is_not_read_before_it_is_written():
    """The call may come ahead; a short gap and a slow disk still cost their time, and the bound knows it."""
    quick = [op(f"t{i}", f"t{i - 1}" if i else "a", mib=0.1, flops=1) for i in range(4)]
    graph = step(placeholder(mib=0.1), op("a", "x", mib=8), *quick, op("z", "t3", "a", mib=0.1))
    problem = reduce(graph, MAPPED)
    schedule = build(problem, {0: Choice(Mode.SWAP, tight_out=True)}, MAPPED)
    assert schedule.stall_seconds == pytest.approx(7, abs=0.1)  # `t1` waits until `a` is written
    assert all(copy.start > 0 for copy in schedule.copies if copy.number)
    late = build(problem, {0: Choice(Mode.SWAP)}, MAPPED)
    relaxed = relaxation.solve(problem, schedule.peak_bytes, MAPPED)
    assert relaxed.bound_seconds <= late.cost_seconds - float(problem.seconds.sum()) + 1e-9
    assert late.stall_seconds == pytest.approx(4, abs=0.1)  # `z` waits: 8 s of writing beside four of computing


def test_a_swap_in_takes_over_nobodys_memory():
    """`b` may write into `a` when it is computed, not when it comes back."""
    quick = [op(f"t{i}", f"t{i - 1}" if i else "b", mib=0.1) for i in range(8)]
    graph = step(
        placeholder(mib=0.1),
        op("a", "x", mib=4),
        op("b", "a", mib=4, type="Relu"),
        *quick,
        op("c", "t3", "a", mib=0.1),
        op("z", "t7", "b", mib=0.1),
    )
    for machine in (SECONDS, MAPPED):
        problem = reduce(graph, machine)
        schedule = build(problem, {1: Choice(Mode.SWAP, tight_out=True)}, machine)
        swap_ins = {id(copy) for copy in schedule.copies if copy.number}
        assert swap_ins
        assert not [copy for copy in schedule.copies if id(copy.heir) in swap_ins]


def test_what_is_read_at_the_peak_can_leave():
    """Without mapping `a` and `b` must be there together."""
    floors = [floor.lowest(reduce(two_passes(), m), m).limit_bytes for m in (SECONDS, MAPPED)]
    assert floors[0] > 8 * MIB
    assert floors[1] < 6 * MIB
    problem = reduce(two_passes(), MAPPED)
    solution = local_search.solve(problem, floors[1], MAPPED)
    assert solution.fits
    plan = emit.emit(solution)
    assert [back.mapped for back in plan.swap_ins] == [True]
    assert all(not back.followers for back in plan.swap_ins)  # there is no memory to take


@pytest.mark.parametrize("machine", [SECONDS, MAPPED])
def test_the_simulator_agrees(machine):
    graph = training(8, mib=4, resident_mib=3)
    problem = reduce(graph, machine)
    limit = int(simulate(graph, machine).peak_bytes * 0.6)
    solution = local_search.solve(problem, limit, machine)
    assert solution.fits
    run = simulate(edit.apply(graph, emit.emit(solution)), machine)
    assert run.peak_bytes <= limit


def test_tflms_plans_are_mapped_too():
    graph = two_passes()
    parameters = tflms.Parameters(swapout_threshold=2, swapin_ahead=1, swapin_groupby=0, sync_mode=0)
    assert {b.mapped for b in tflms.build(graph, parameters, mapped=True).swap_ins} == {True}
    assert {b.mapped for b in tflms.build(graph, parameters).swap_ins} == {False}
    kept = replace(graph, returned=frozenset({"a:0"}))
    assert {b.mapped for b in tflms.build(kept, parameters, mapped=True).swap_ins} == {False}


# -- the rewritten step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [chain, fork, u_net])
def test_no_bit_changes(function, tier):
    expected = [functions.trace(function, SPEC)(batch(seed)) for seed in range(3)]
    made = by_tflms(function, tier, mapped=True)
    assert any(back.mapped for back in made.plan.swap_ins)
    assert not [o.name for o in made.function.graph.get_operations() if o.type == "LmsFetch"]
    same_bits([made.function(batch(seed)) for seed in range(3)], expected)
    assert tier.take_counters()["swapped_in_bytes"] == 0  # nothing moves


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "bool", "uint8", "complex64", "int64"])
def test_every_type(dtype, tier):
    def converted(x: tf.Tensor) -> tf.Tensor:
        return x > 0 if dtype == "bool" else tf.cast(tf.abs(x * 3), dtype)

    def function(x: tf.Tensor) -> tf.Tensor:
        early, late = converted(x), x
        for _ in range(6):
            late = tf.sin(late)
        return tf.concat([early, converted(late)], 0)

    made = by_tflms(function, tier, mapped=True)
    assert any(tf.dtypes.as_dtype(made.op(b.name).outputs[0].dtype) == dtype for b in made.plan.swap_ins if b.mapped)
    for seed in range(2):
        same_bits(made.function(batch(seed)), functions.trace(function, SPEC)(batch(seed)))


def test_a_reader_that_could_write_in_place_does_not(tier):
    """The same swapped tensor is read by two copies; the first reader would overwrite it if it could."""
    made = by_tflms(fork, tier, mapped=True)
    assert len([b for b in made.plan.swap_ins if b.mapped]) > 1
    for seed in range(3):
        same_bits(made.function(batch(seed)), functions.trace(fork, SPEC)(batch(seed)))
        (path,) = tier.directory.glob("*.bin")
        written = np.fromfile(path, np.float32)
        assert written.tobytes() == tf.tanh(batch(seed)).numpy().tobytes()


def test_nobody_writes_through_a_view(tier):
    """TensorFlow takes a view of a part for its own memory. Its last reader would write into the file, which a later copy reads."""

    def function(x: tf.Tensor) -> tf.Tensor:
        a = tf.tanh(x, name="a")
        near = tf.reduce_sum(a, name="near")
        part = tf.slice(a, [1, 0], [SPEC.shape[0] - 1, -1], name="part")
        early = tf.reduce_sum(tf.multiply(part, near, name="early"), name="total")
        return tf.multiply(a, early, name="late")

    original = functions.trace(function, SPEC)
    backs = [
        SwapIn(tensor="a:0", copy=n, consumers=(reader,), triggers=(trigger,), mapped=True)
        for n, (reader, trigger) in enumerate((("part", "near"), ("late", "total")))
    ]
    plan = Plan(swap_outs=(SwapOut(tensor="a:0", bytes=4 * SPEC.shape.num_elements()),), swap_ins=tuple(backs))
    made, _ = rewrite(original, capture(original), plan, tier)
    for seed in range(3):
        same_bits(made(batch(seed)), functions.trace(function, SPEC)(batch(seed)))
        (path,) = tier.directory.glob("*.bin")
        assert np.fromfile(path, np.float32).tobytes() == tf.tanh(batch(seed)).numpy().tobytes()


def test_a_variable_keeps_its_value_when_the_file_changes(tier):
    state = tf.Variable(tf.zeros(SPEC.shape))

    def function(x: tf.Tensor) -> tf.Tensor:
        a = tf.tanh(x, name="a")
        late = x
        for _ in range(6):
            late = tf.sin(late)
        with tf.control_dependencies([late]):
            state.assign(a)
        return tf.reduce_sum(late * a)

    made = by_tflms(function, tier, mapped=True)
    assert [b.mapped for b in made.plan.swap_ins if b.tensor == "a:0"]
    assert not any(b.mapped for b in made.plan.swap_ins if b.tensor == "a:0")
    made.function(batch(0))
    kept = state.read_value()
    made.function(batch(1))
    same_bits(kept, tf.tanh(batch(0)))


def test_no_memory_of_the_pool_is_taken(tmp_path, commands):
    """In a process of its own: in a pool with holes the allocator hands out, and counts, pieces larger than asked for."""
    command = "import sys; from tests.lms3d.engine.tiers.test_mapped import pool_peaks; print(*pool_peaks(sys.argv[1]))"
    done = commands.run(["-c", command, tmp_path])
    assert done.returncode == 0, done.stderr
    copied, mapped = map(int, done.stdout.split())
    assert copied == pytest.approx(128, abs=4)
    assert mapped == pytest.approx(64, abs=4)


def pool_peaks(directory: str) -> list[int]:
    """MiB, copied back and read in place: `a` (64 MiB) is swapped out before `b` is made, and multiplied with it; in place only
    `b` needs memory then. The least of three: on a busy machine a late thread holds its inputs for longer."""
    spec = tf.TensorSpec((16, 1024, 1024), tf.float32)

    def function(x: tf.Tensor) -> tf.Tensor:
        a = tf.tanh(x, name="a")
        b = tf.add(x, tf.reduce_sum(a, name="near"), name="b")
        return tf.reduce_sum(tf.multiply(b, a, name="z"))

    data = tf.zeros(spec.shape)
    tier = DiskTier(Path(directory))
    idle = tf.config.experimental.get_memory_info("CPU:0")["current"]
    peaks = []
    for mapped in (False, True):
        original = functions.trace(function, spec)
        out = SwapOut(tensor="a:0", bytes=64 << 20, waiters=("b",))
        back = SwapIn(tensor="a:0", copy=0, consumers=("z",), triggers=("b",), mapped=mapped)
        made, _ = rewrite(original, capture(original), Plan(swap_outs=(out,), swap_ins=(back,)), tier)
        made(data)
        found = []
        for _ in range(3):
            tf.config.experimental.reset_memory_stats("CPU:0")
            made(data)
            found.append((tf.config.experimental.get_memory_info("CPU:0")["peak"] - idle) >> 20)
        peaks.append(min(found))
    tier.close()
    return peaks


def test_a_discarded_function_leaves_no_map(tier):
    made = by_tflms(chain, tier, mapped=True)
    made.function(batch())

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(tier.directory))

    assert maps() == 1
    tier.discard(made.function.graph)
    assert maps() == 0
    assert list(tier.directory.glob("*.bin")) == []


def test_a_tape_does_not_see_through_a_mapped_tensor(tier):
    made = by_tflms(chain, tier, mapped=True)
    data = batch()
    with tf.GradientTape() as tape:
        tape.watch(data)
        with pytest.raises(ValueError, match="cannot see through"):
            made.function(data)


def test_a_cpu_and_a_disk_that_writes_in_place_are_mapped(tmp_path, monkeypatch):
    """Asked each time: a measurement in one folder says nothing about the file system of another."""
    monkeypatch.setattr(speeds, "cache_directory", lambda: tmp_path / "cache")
    for in_place in (True, False, True):
        monkeypatch.setattr(disk, "writes_in_place", lambda folder, in_place=in_place: in_place)
        assert speeds.machine("CPU:0", "disk", tmp_path).mapped is in_place
    assert speeds.machine("CPU:0", "disk", tmp_path, mapped=False).mapped is False
    assert speeds.machine("CPU:0", "host", None).mapped is False
    assert Machine().mapped is False


@pytest.mark.parametrize("mapped", [True, False])
def test_calls_that_could_run_at_a_time_are_refused(mapped, tier):
    """TensorFlow inlines such calls and mixes them: one would write to the file that the other still reads."""
    made = by_tflms(chain, tier, mapped=mapped)

    @tf.function
    def twice(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return [made.function(x), made.function(y)]

    with pytest.raises(ValueError, match="call it eagerly"):
        twice(batch(0), batch(1))


def test_threads_take_turns(tier):
    made = by_tflms(fork, tier, mapped=True)
    batches = [batch(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(made.function, batches * 4))
    expected = functions.trace(fork, SPEC)
    same_bits(found, [expected(one) for one in batches] * 4)


def test_functions_of_one_graph_take_turns(tier):
    """Rewritten again, a function is another one with the same files."""
    made = by_tflms(fork, tier, mapped=True)
    again = functions.make_function(made.function)
    assert again is not made.function
    assert again.one_at_a_time is made.function.one_at_a_time
    batches = [batch(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: (made.function, again)[n % 2](batches[n % 8]), range(32)))
    expected = functions.trace(fork, SPEC)
    same_bits(found, [expected(batches[n % 8]) for n in range(32)])


def test_a_tensor_without_elements_stays(tier):
    spec = tf.TensorSpec((0, 4), tf.float32)
    made = by_tflms(chain, tier, spec, mapped=True)
    assert made.plan.empty
    assert made.function(tf.zeros((0, 4))).shape == (0, 4)


# -- without a call ------------------------------------------------------------------------------------------------------


@pytest.fixture
def looks(replace) -> list[int]:
    """Grows with each look at the pages of a file, by its bytes: one before each write, and one before a read in place, if in
    doubt."""
    found: list[int] = []

    def mincore(address: int, size: int, pages: int) -> int:
        found.append(size)
        return int(LIBC.mincore(address, size, pages))

    replace("mincore", mincore)
    return found


@pytest.fixture
def faults(monkeypatch) -> list[int]:
    """Its last number is how often the process has waited for a page: here, never."""
    count = [0]
    monkeypatch.setattr(disk, "_pages_read", lambda: count[-1])
    return count


def test_a_mapped_read_does_not_look(tier, looks, faults):
    made = by_tflms(fork, tier, mapped=True)
    ins = [made.op(back.name) for back in made.plan.swap_ins if back.mapped]
    assert {op.type for op in ins} == {"LmsReadInPlace"}
    made.function(batch(0))
    assert len(looks) == len(ins)  # the file is new: there is nothing to look at before the write
    for seed in range(1, 4):
        del looks[:]
        same_bits(made.function(batch(seed)), functions.trace(fork, SPEC)(batch(seed)))
        assert len(looks) == 1  # before the write


@pytest.mark.parametrize("mapped", [True, False])
def test_no_op_of_a_step_calls_python(tier, mapped):
    made = by_tflms(u_net, tier, mapped=mapped)
    assert made.plan.swap_ins
    assert not [op.name for op in made.function.graph.get_operations() if "PyFunc" in op.type]


def test_it_looks_where_the_file_has_lost_pages(tier, looks, faults):
    made = by_tflms(chain, tier, mapped=True)
    for _ in range(2):
        made.function(batch())
    assert len(looks) == 2  # of the first step after its write, and of the second before it
    with replaced("mincore", resident(False)):
        same_bits(made.function(batch(1)), functions.trace(chain, SPEC)(batch(1)))
    assert tier.take_counters()["swapped_in_bytes"] == SPEC.shape.num_elements() * 4
    for expected in (2, 1):  # pages were dropped in the step before, and not in this one
        with replaced("mincore", lambda *given: looks.append(0) or LIBC.mincore(*given)):
            del looks[:]
            made.function(batch())
        assert len(looks) == expected


def test_it_looks_after_a_step_that_waited_for_pages(tier, looks, faults, monkeypatch):
    made = by_tflms(chain, tier, mapped=True)
    for _ in range(2):
        made.function(batch())
    with monkeypatch.context() as waiting:
        rising = iter(range(100, 200))
        waiting.setattr(disk, "_pages_read", lambda: next(rising))
        made.function(batch())
    for expected in (2, 1):
        del looks[:]
        made.function(batch())
        assert len(looks) == expected


@pytest.mark.parametrize("mapped", [True, False])
def test_after_a_failure_the_same_function_goes_on_with_new_files(tier, faults, mapped):
    made = by_tflms(chain, tier, mapped=mapped)
    made.function(batch())
    with replaced("mincore", resident(False)), replaced("msync", fails(errno.EIO)):
        with pytest.raises(tf.errors.OpError, match="Input/output error while moving"):
            made.function(batch())
        assert "Input/output error while moving" in str(tier.error)
        assert list(tier.directory.glob("*.bin")) == []
    for seed in range(3):
        same_bits(made.function(batch(seed)), functions.trace(chain, SPEC)(batch(seed)))
        (path,) = tier.directory.glob("*.bin")
        assert path.read_bytes() == tf.tanh(batch(seed)).numpy().tobytes()


def test_a_result_that_lies_in_a_file_outlives_the_step_and_the_tier(tmp_path):
    """FILE-5: such a plan is not made (`liveness.lasting`); were it made, nobody would read memory that is gone."""
    tier = DiskTier(tmp_path)
    original = functions.trace(lambda x: tf.identity(tf.tanh(x, name="a"), name="z"), SPEC)
    out = SwapOut(tensor="a:0", bytes=SPEC.shape.num_elements() * 4)
    back = SwapIn(tensor="a:0", copy=0, consumers=("z",), triggers=(), mapped=True)
    made, _ = rewrite(original, capture(original), Plan(swap_outs=(out,), swap_ins=(back,)), tier)
    (found,) = tf.nest.flatten(made(batch()))
    same_bits(found, tf.tanh(batch()))
    tier.close()
    assert not found.numpy().any()


def test_tensors_of_any_size_are_read_where_they_lie(tier):
    spec = tf.TensorSpec((2, 3))
    made = by_tflms(chain, tier, spec, mapped=True)
    assert any(back.mapped for back in made.plan.swap_ins)
    for seed in range(3):
        same_bits(made.function(batch(seed, spec)), functions.trace(chain, spec)(batch(seed, spec)))


def test_a_function_whose_tier_is_closed_fails(tmp_path):
    closed = DiskTier(tmp_path)
    made = by_tflms(chain, closed, mapped=True)
    made.function(batch())
    closed.close()
    with pytest.raises(StorageError, match="the swap tier of this function is closed"):
        made.function(batch())


def test_no_room_for_another_map_is_an_error_of_the_folder(tier, replace):
    replace("mmap", fails(errno.ENOMEM))
    with pytest.raises(StorageError, match=r"swap folder .*Cannot allocate memory while mapping"):
        by_tflms(chain, tier, mapped=True)
