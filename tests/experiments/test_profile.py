"""`experiments.profile`: a real profile says what the tier counted, nothing counts twice, and the command works."""

import csv
import json
import shutil
from collections import defaultdict
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from lms3d import LMS
from lms3d import train as lms3d_train
from lms3d.atomic_files import write_json
from lms3d.engine.tiers import TIERS
from lms3d.engine.tiers.disk import DiskTier
from lms3d.errors import InputError
from lms3d.experiments import profile as command
from lms3d.experiments.harness import commands
from lms3d.experiments.profiling import figure, intervals, lanes, measure, perfetto, report, training, work, xplane
from lms3d.tasks.brats.options import BratsConfig
from lms3d.training.callbacks.progress import Profile

EVERY_TENSOR = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}
FIRST, LAST = 2, 4


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Steps 2 to 4 of a real `fit` under LMS that swaps all that it can: the trace and the rows of lms_stats.csv."""
    folder = tmp_path_factory.mktemp("profiled")
    model = keras.Sequential([keras.Input((64,)), *[keras.layers.Dense(64, "tanh") for _ in range(3)]])
    model.compile("sgd", "mse", jit_compile=False)
    data = tf.data.Dataset.from_tensors(np.ones((64, 64), np.float32)).repeat()
    data = data.map(lambda x: (tf.math.lgamma(x, name="of_the_pipeline"), x))
    lms = LMS(
        tier="disk", swap_dir=folder / "swap", mapped=False, adapt=False, stats_file=folder / "lms_stats.csv",
        **EVERY_TENSOR,
    )  # fmt: skip
    callbacks = [lms, Profile((1, FIRST, LAST), folder / "tensorboard", 5)]
    model.fit(data, steps_per_epoch=5, verbose=0, shuffle=False, callbacks=callbacks)
    (step,) = lms._runner.steps.values()
    (folder / "ops.txt").write_text("\n".join(work.of(step.prepared.function.graph)))
    lms.close()
    with (folder / "lms_stats.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[FIRST - 1 : LAST]
    return lanes.read(xplane.newest(folder)), rows, folder


def total(rows, name):
    return sum(float(row[name]) for row in rows)


def test_the_steps_are_those_that_were_profiled(profiled):
    trace, rows, _ = profiled
    assert [str(step.number) for step in trace.steps] == [row["step"] for row in rows]
    assert trace.device == "CPU"


def test_transfers_are_those_that_the_tier_counted(profiled):
    trace, rows, folder = profiled
    found = measure.profile(trace)
    assert found.out.size_bytes == total(rows, "swapped_out_bytes") > 0
    assert found.into.size_bytes == total(rows, "swapped_in_bytes") > 0
    assert (found.out.transfers, found.into.transfers) == (total(rows, "swap_outs"), total(rows, "swap_ins"))
    assert (
        report.ProfiledRun(name="", profile=found, counted=report.counted_bytes(folder / "lms_stats.csv", found)).check
        == "the same"
    )
    steps = intervals.union(step.interval for step in trace.steps)
    for lane in (lanes.OUT, lanes.IN):
        moved = intervals.union(span.interval for span in trace.lanes[lane])
        assert intervals.common(moved, steps) == moved


def test_computing_is_what_the_step_does_and_nobody_else(profiled):
    names = {span.name for span in profiled[0].lanes[lanes.COMPUTE]}
    assert any(name.endswith("MatMul") for name in names)
    assert not [name for name in names if name.startswith(("lms/swap_", "lms/hold/"))]  # they wait for the copy
    assert not [name for name in names if "of_the_pipeline" in name]
    assert any("of_the_pipeline" in span.name for span in profiled[0].lanes[lanes.DATA])
    raw = (next(profiled[2].rglob("*.xplane.pb"))).read_bytes()
    assert b"of_the_pipeline" in raw
    assert b"lms/swap_in/" in raw
    assert b"lms/hold/" in raw


def test_no_time_counts_twice(profiled):
    trace, _, _ = profiled
    found = measure.profile(trace)
    begin, end = measure.whole(trace)
    computing = measure.times(trace, lanes.COMPUTE)
    resting = intervals.between(computing, (begin, end))
    assert intervals.total(computing) + intervals.total(resting) == end - begin
    assert found.busy_share == intervals.total(computing) / (end - begin) <= 1
    assert 0 <= found.overlap_share <= 1
    assert sum(found.step_seconds) + sum(found.gap_seconds) == pytest.approx(found.range_seconds)
    assert found.transferring_alone_share <= 1 - found.busy_share + 1e-12
    assert found.waiting_seconds <= sum(found.gap_seconds)
    assert found.allocations_per_step >= 0
    assert len(found.gap_seconds) == LAST - FIRST


def spans(lane, *pairs):
    return [lanes.LaneSpan(name=f"{lane}:X", line="1", begin=begin, end=end, size_bytes=10) for begin, end in pairs]


def test_figures_of_a_trace_that_can_be_worked_out_by_hand():
    second = 10**12
    every = {
        lanes.COMPUTE: spans("compute", (0, 4 * second), (2 * second, 5 * second), (10 * second, 12 * second)),
        lanes.OUT: spans("out", (4 * second, 6 * second), (4 * second, 6 * second)),
        lanes.IN: spans("in", (5 * second, 7 * second)),
        lanes.WAIT: spans("wait", (8 * second, 9 * second)),
        lanes.DATA: spans("data", (1 * second, 3 * second), (8 * second, 10 * second)),
    }
    steps = spans("step", (0, 8 * second), (10 * second, 20 * second))
    found = measure.profile(lanes.Trace(device="CPU", steps=steps, lanes=every, allocations=(1, 2, 21 * second)))
    assert found.range_seconds == pytest.approx(20)
    assert found.busy_share == pytest.approx(7 / 20)
    assert found.idle_in_step_share == pytest.approx(11 / 18)
    assert found.overlap_share == pytest.approx(1 / 3)
    assert found.transferring_alone_share == pytest.approx(2 / 20)
    assert (found.data_share, found.data_overlap_share) == (pytest.approx(4 / 20), pytest.approx(0.5))
    assert (found.gap_seconds, found.waiting_seconds) == (pytest.approx((2.0,)), pytest.approx(1))
    assert found.out.bytes_per_busy_second == pytest.approx(20 / 2)
    assert found.out.bytes_per_second == pytest.approx(20 / 20)
    assert found.allocations_per_step == 1


some_intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def points(pairs):
    return {k for begin, end in pairs for k in range(begin, end)}


@given(some_intervals, some_intervals)
def test_intervals_are_sets_of_points(some, others):
    one, other = intervals.union(some), intervals.union(others)
    assert points(one) == points(some)
    assert points(intervals.common(one, other)) == points(some) & points(others)
    assert points(intervals.between(one, (3, 20))) == points([(3, 20)]) - points(some)
    for disjoint in (one, intervals.common(one, other), intervals.between(one, (3, 20))):
        assert intervals.total(disjoint) == len(points(disjoint))


def gpu_space():
    """An XSpace as CUPTI's collector writes it: streams of a device beside the threads of the host."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    host, gpu = space.planes.add(name="/host:CPU"), space.planes.add(name="/device:GPU:0")
    gpu.stat_metadata[1].name = "memcpy_details"
    gpu.stat_metadata[2].name = "tf_op"
    host.stat_metadata[1].name = "step_num"

    def add(plane, line, key, name, begin, end, details=None, op=None):
        plane.event_metadata[key].name = name
        event = line.events.add(metadata_id=key, offset_ps=begin, duration_ps=end - begin)
        if details is not None:
            value = {"str_value": details} if isinstance(details, str) else {"int64_value": details}
            event.stats.add(metadata_id=1, **value)
        if op is not None:
            event.stats.add(metadata_id=2, str_value=op)

    thread = host.lines.add(name="python", timestamp_ns=1)
    add(host, thread, 1, lanes.STEP, 0, 100, 7)
    add(host, thread, 2, "MatMul:MatMul", 0, 100)  # launches the kernel: the device computes, not the host
    kernels, copies = (
        gpu.lines.add(name="Stream #1(Compute)", timestamp_ns=1),
        gpu.lines.add(name="Stream #2(MemcpyD2H)", timestamp_ns=1),
    )
    add(gpu, kernels, 1, "ampere_sgemm_128x64", 10, 30, op="model/dense/MatMul:MatMul")
    add(gpu, kernels, 5, "memset", 30, 35)
    add(gpu, kernels, 1, "ampere_sgemm_128x64", 35, 60, op="gradients/MatMul_1:MatMul")
    add(gpu, copies, 2, "MemcpyD2H", 50, 70, "kind_src:device kind_dst:pinned size:4096 dest:0 async:1")
    add(gpu, copies, 3, "MemcpyH2D", 70, 80, "kind_src:pinned kind_dst:device size:1024 dest:0 async:1")
    add(gpu, gpu.lines.add(name="XLA Ops", timestamp_ns=1), 4, "derived", 0, 100)
    return space


def test_a_gpu_is_read_from_its_streams():
    trace = lanes.of(gpu_space())
    found = measure.profile(trace)
    assert (trace.device, found.first_step) == ("/device:GPU:0", 7)
    assert [span.name for span in trace.lanes[lanes.COMPUTE]] == [
        "ampere_sgemm_128x64",
        "memset",
        "ampere_sgemm_128x64",
    ]
    assert (found.out.size_bytes, found.into.size_bytes) == (4096, 1024)
    assert found.busy_share == pytest.approx(0.5)
    assert found.overlap_share == pytest.approx(1 / 3)


def test_kernels_of_a_gpu_are_counted_by_type_of_op():
    product, memset = measure.kernels(lanes.of(gpu_space()))
    assert (product.kernel, product.op, product.launches) == ("ampere_sgemm_128x64", "MatMul", 2.0)
    assert (memset.kernel, memset.op, memset.launches) == ("memset", "", 1.0)
    assert (product.seconds, memset.seconds) == (pytest.approx(45e-12), pytest.approx(5e-12))


def test_work_counts_for_the_kernel_that_an_op_spends_most_time_in():
    def launch(kernel, begin, end, op):
        return lanes.LaneSpan(name=kernel, line="1", begin=begin, end=end, op=op)

    steps = [lanes.LaneSpan(name=lanes.STEP, line="host", begin=at, end=at + 100, number=at) for at in (0, 100)]
    spans = [
        launch(*kernel, op)
        for at in (0, 100)
        for kernel, op in (
            (("pad", at, at + 10), "a:Conv3D"), (("gemm", at + 10, at + 40), "a:Conv3D"),
            (("gemm", at + 40, at + 50), "b:Conv3D"), (("copy", at + 50, at + 55), "c:Identity"),
        )
    ]  # fmt: skip
    works = {name: measure.OpWork(flops=flops, size_bytes=8) for name, flops in (("a", 300), ("b", 100), ("z", 1))}
    trace = lanes.Trace(device="/device:GPU:0", steps=steps, lanes={lanes.COMPUTE: spans})
    found = {one.kernel: (one.launches, one.flops, one.size_bytes) for one in measure.kernels(trace, works)}
    assert found == {"gemm": (2.0, 400, 16), "pad": (1.0, 0, 0), "copy": (1.0, 0, 0)}  # of one step


def test_a_profile_names_the_ops_of_the_step_that_ran(profiled):
    """Under a plan, too: by its name the work of an op is found."""
    trace, _, folder = profiled
    names = {span.name.rpartition(":")[0] for span in measure.within(trace, lanes.COMPUTE)}
    assert len(names) > 10
    assert names <= set((folder / "ops.txt").read_text().splitlines())


def test_the_work_of_an_op():
    @tf.function
    def step(x):
        return tf.nn.relu(tf.matmul(x, x, name="product"))

    graph = step.get_concrete_function(tf.TensorSpec((2, 2))).graph
    found = work.of(graph)
    assert found["product"] == measure.OpWork(flops=16, size_bytes=3 * 16)
    assert found["Relu"] == measure.OpWork(flops=0, size_bytes=2 * 16)


def nested_or_apart(events):
    """Whether events of one thread lie within each other or apart, which is what the format allows."""
    open_ends = []
    for begin, end in sorted(events, key=lambda one: (one[0], -one[1])):
        while open_ends and open_ends[-1] <= begin + 1e-9:
            open_ends.pop()
        if open_ends and end > open_ends[-1] + 1e-6:
            return False
        open_ends.append(end)
    return True


def test_the_trace_opens_in_perfetto(profiled, tmp_path):
    trace, rows, _ = profiled
    content = json.loads(perfetto.write(trace, tmp_path / "trace.json").read_text())
    assert content["displayTimeUnit"] == "ms"
    names, threads, moved = {}, defaultdict(list), defaultdict(int)
    for event in content["traceEvents"]:
        assert {"ph", "pid", "name", "args"} <= event.keys()
        if event["ph"] == "M":
            names.setdefault((event["name"], event["pid"], event.get("tid")), event["args"])
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        moved[event["cat"]] += event["args"].get("size_bytes", 0)
    assert [names["process_name", pid, None]["name"] for pid in range(1, 7)] == list(perfetto.TITLES.values())
    assert all(("thread_name", *thread) in names for thread in threads)
    assert all(nested_or_apart(events) for events in threads.values())
    assert (moved["out"], moved["in"]) == (total(rows, "swapped_out_bytes"), total(rows, "swapped_in_bytes"))


def test_the_timeline_is_drawn(profiled, tmp_path):
    assert figure.draw([("one", profiled[0])], tmp_path / "timeline.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_no_profile_is_refused(tmp_path, capsys):
    with pytest.raises(InputError, match=r"found no \*\.xplane\.pb"):
        xplane.newest(tmp_path)
    (tmp_path / "a.xplane.pb").write_bytes(b"no protobuf")
    with pytest.raises(InputError, match="expected a profile of TensorFlow"):
        lanes.read(tmp_path / "a.xplane.pb")
    (tmp_path / "a.xplane.pb").write_bytes(b"")
    with pytest.raises(InputError, match="found no training step"):
        lanes.read(tmp_path / "a.xplane.pb")
    assert command.main([str(tmp_path / "none"), "--output", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "train with --profile EPOCH:FIRST-LAST" in line
    assert not (tmp_path / "out").exists()


def run_folder_of(profiled, run_dir):
    """A run directory as `lms3d.train` leaves it, with the profile of the fixture."""
    content = {"options": BratsConfig(resolution=16, swap_tier="copied").to_json(), "memory_limit_bytes": 1 << 30}
    write_json(run_dir / "config.json", content)
    shutil.copytree(profiled[2] / "tensorboard", run_dir / "tensorboard")
    shutil.copy(profiled[2] / "lms_stats.csv", run_dir)


@pytest.fixture
def copied_tier():
    training.add_tier()
    yield
    TIERS.remove(training.COPIED)


def test_the_command(profiled, copied_tier, tmp_path, capsys, monkeypatch):
    """tests/integration/test_train.py gives it a run that was really trained."""
    output, trained = tmp_path / "out", []

    def train(words):
        trained.append(words)
        run_dir = Path(words[words.index("--output") + 1])
        run_dir.mkdir(parents=True)
        run_folder_of(profiled, run_dir)

    monkeypatch.setattr(commands, "run", train)
    words = ["--resolution", "16", "--batches", "1:2-4", "--train-options", "--epochs 3", "--output", str(output)]
    assert command.main(words) == 0
    assert trained[0][1:3] == ["-m", "lms3d.experiments.profiling.training"]
    given = vars(lms3d_train._parser().parse_args(trained[0][3:]))
    assert (given["profile"], given["swap_tier"], given["epochs"], given["output"]) == (
        (1, 2, 4),
        "copied",
        3,
        output / "run",
    )
    (row,) = csv.DictReader((output / "profile.csv").read_text().splitlines())
    assert (row["steps"], row["first_step"], row["device"]) == ("3", "1", "CPU")
    assert float(row["out_bytes"]) == total(profiled[1], "swapped_out_bytes")
    text = (output / "report.md").read_text()
    assert "| isensee2017 16³, copied back | " in text
    assert "| bytes both ways, by the tier's own count | the same |" in text
    assert "| case study: AC922 with 4 GPUs | 73.5 % | 64.4 GB/s | 60.4 GB/s |" in text
    assert {path.name for path in output.iterdir()} == {
        "timeline.png", "1.trace.json", "profile.json", "profile.csv", "report.md", "run",
    }  # fmt: skip
    assert command.main(words) == 0  # the profile of before is read
    run = str(output / "run")
    assert command.main([run, run, "--output", str(tmp_path / "two")]) == 0
    assert len(trained) == 1
    assert len((tmp_path / "two" / "profile.csv").read_text().splitlines()) == 3
    assert command.main([*words, "--again", "--mapped"]) == 0
    assert "--swap-tier" not in trained[1]
    assert not capsys.readouterr().err


def test_the_tier_that_copies_back_is_the_disk_tier_without_reading_in_place(copied_tier):
    tier = TIERS[training.COPIED]
    assert issubclass(tier, DiskTier)
    assert not tier.can_map("CPU:0", None)
