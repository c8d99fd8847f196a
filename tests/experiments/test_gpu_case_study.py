"""The GPU case study: its rehearsal with real children; with imitated ones the end of time, dead children, interruptions."""

from __future__ import annotations

import csv
import itertools
import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lms3d.experiments import gpu_case_study, report
from lms3d.experiments.accelerator import card, check, page, placement, scale, sections, study, tables, trainings
from lms3d.experiments.accelerator.card import Card
from lms3d.experiments.accelerator.sections import SECTIONS
from lms3d.experiments.accelerator.study import DONE, FAILED, INTERRUPTED, OUT_OF_TIME, GpuStudy
from lms3d.experiments.accelerator.trainings import Trainings
from lms3d.experiments.harness import child as process
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import MIB, PartResult, StudyPart
from lms3d.experiments.overhead.results import MethodComparison
from lms3d.experiments.reporting.runs import known
from tests.thorough import THOROUGH

GPU = Card(
    name="A100", memory_bytes=40 << 30, capability=(8, 0), driver="550.54", processor="a CPU, 8 cores", versions="TensorFlow 2.21"
)  # fmt: skip
PLACED = {"computes_on": "GPU:0", "swap_outs": 6, "swap_ins": 8, "recomputes": 3, "wrong": [], "same_bits": True}
KERNELS = {
    "kernel_seconds": 0.25, "idle_in_step_share": 0.1, "kernels": [
        {"kernel": "wgrad_" + 80 * "x", "op": "Conv3D", "launches": 4.0, "seconds": 0.0125, "flops": 5e11, "size_bytes": 10**10},
        {"kernel": "pad", "op": "Conv3D", "launches": 4.0, "seconds": 0.001, "flops": 0, "size_bytes": 0},
    ],
}  # fmt: skip
PEERS = "XLA and PyTorch on the same network"
BYTES_OF_VOXEL = 1850.0  # of the imitated step, a tenth of it with LMS


class Imitation:
    """A child that trains in BYTES_OF_VOXEL without LMS, in a tenth with it. made: for which parts, in order."""

    made: list[StudyPart]
    deadlines: list[float]
    fails: dict[str, BaseException]
    digests: list[str]
    when_measured: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, part: StudyPart, log: Path, deadline: float) -> None:
        self.made.append(part)
        self.deadlines.append(deadline)
        self.part, self.steps = part, 0
        if part.method in self.fails:
            raise self.fails[part.method]
        saves = part.method != methods.NONE
        self.peak = int(part.resolution**3 * BYTES_OF_VOXEL * (0.1 if saves else 1.0))
        if self.peak > (part.limit_mib * MIB if part.limit_mib else GPU.memory_bytes or 0):
            raise process.ChildFailed("out of memory", "ResourceExhaustedError")
        self.ready = {"ready": True, "device": "A100"}

    def step(self) -> dict:
        self.steps += 1
        return {
            "seconds": (0.36 if self.part.workspace_mib else 0.3) if self.part.method == methods.NONE else 0.45,
            "peak_bytes": self.peak,
            "resident_bytes": 1,
            "loss": -0.5,
        }

    def finish(self) -> dict:
        assert self.steps == self.part.warm_up + self.part.steps + self.part.profiled
        moved = {"out_bytes": 3 << 30, "in_bytes": 3 << 30, "out_bytes_per_second": 2e10, "in_bytes_per_second": 2.5e10}
        busy = (
            {"device": "/device:GPU:0", "busy_share": 0.91, "overlap_share": 0.77, **moved, **KERNELS}
            if self.part.profiled
            else {}
        )
        planned = {"planner": "hybrid", "predicted_peak_bytes": int(0.96 * self.peak), "predicted_step_seconds": 0.5}
        digest = self.digests[self.part.repeat - 1] if self.part.method == methods.NONE else "abc"
        workspace = {"workspace_mib": str(self.part.workspace_mib or "")}
        return {
            "digest": digest,
            "report": {} if self.part.method == methods.NONE else planned,
            "profile": busy,
            **workspace,
        }

    def kill(self) -> None:
        pass


@pytest.fixture
def child() -> type[Imitation]:
    return type("Child", (Imitation,), {"made": [], "deadlines": [], "fails": {}, "digests": ["abc", "abc"]})


def made(tmp_path: Path, child: type[Imitation], **more) -> GpuStudy:
    """A study of an imitated GPU; what it knows is in its folder."""
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes)
    runs = Trainings(tmp_path, least_seconds=size.least_seconds, card_bytes=GPU.memory_bytes, start=child)
    return GpuStudy(tmp_path, size, runs, rehearsed=False, **{"place": lambda log, seconds, rehearsed: PLACED, **more})


def outcomes(found: GpuStudy) -> dict[str, str]:
    return {name: state.outcome for name, state in found.states.items()}


def section_of(text: str, title: str) -> str:
    return re.split(r"^## ", text.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def test_the_page_has_a_table_for_each_section(tmp_path, child):
    done = made(tmp_path, child)
    done.run(8)
    assert set(outcomes(done).values()) == {DONE}
    text = page.write(done, GPU, "python -m experiments.gpu_case_study")
    assert list(re.findall(r"^## (.*)$", text, re.MULTILINE)) == [section.title for section in SECTIONS]
    assert "A100 (40.0 GiB for TensorFlow); driver 550.54; host: a CPU, 8 cores; TensorFlow 2.21" in text
    assert "Made by `python -m experiments.gpu_case_study`" in text
    minute = section_of(text, "Does it work here?")
    assert "**The same bits**" in minute
    assert "with LMS and without, after 3 steps | no LMS: abc, no LMS: abc, LMS: abc | yes |" in minute
    assert "6 tensors swapped out, 8 swapped in" in section_of(text, "Is every op where it should be?")
    row = (
        "| 192³ | LMS | 3.73 GiB | trained | 128 MiB | 450 ms | 1.50 | 1.25 | 1.22 GiB | 91% | 77% | 3.00 GiB at 20 GB/s | "
        "3.00 GiB at 25 GB/s"
    )
    limits = section_of(text, "What a limit costs")
    assert row in limits
    assert "| 256³ | LMS | 14.9 GiB | trained |" in section_of(text, "A step that does not fit the smaller card")
    assert "| 192³ | no LMS | none | trained | 128 MiB | 360 ms | 1.20 | 1.00 |" in limits
    assert "| TFLMS auto-tune | 3.73 GiB |" in limits
    slowest = f"| wgrad_{54 * 'x'} | Conv3D | 4 | 12.50 ms | "
    assert f"{slowest}4.2% | 800 | 40 |" in limits  # without LMS
    assert f"{slowest}2.8% | 800 | 40 |" in limits  # in half of its memory
    assert limits.count("| pad | Conv3D | 4 | 1.00 ms |") == limits.count("250 ms a step, none in 10% of the step") == 2
    assert "| swap everything | none |" in limits
    assert "| Keras fit as it is | none |" in limits
    assert "| 192³, mixed_bfloat16 | LMS | 3.00 GiB | trained | 450 ms | 1.50 |" in section_of(text, "In 16 bits")
    assert "| mixed_bfloat16 without LMS: step | 0.70 x float32 | 1.00 x float32 | **missed** |" in text
    row = "| 192³ | LMS | 3.73 GiB | 1.22 GiB | 1.17 GiB (-4%) | 450 ms | 500 ms (+11%) |"
    assert row in section_of(text, "Predicted and measured")
    with open(tmp_path / "gpu_case_study.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["section"] for row in rows} == {"check", "limits", "peers", "large", "precision", "cubes"}
    assert "| 192³ | XLA for the whole step | none | trained |" in section_of(text, PEERS)
    saved = json.loads((tmp_path / "sections/large.json").read_text())
    assert [row["method"] for row in saved["rows"]] == [methods.NONE, methods.LMS]


def test_xla_and_all_of_pytorch_stand_beside_the_step_without_lms(tmp_path, child):
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes, with_peers=True)
    runs = Trainings(tmp_path, card_bytes=GPU.memory_bytes, start=child)
    done = GpuStudy(tmp_path, size, runs, rehearsed=False)
    done.run(8, only=["peers"])
    trained = [part.method for part in child.made]
    assert trained[:7] == [methods.NONE, *scale.PEERS]  # a short time is for these
    assert trained[7] == methods.XLA
    assert sorted(trained[1:]) == sorted([methods.XLA, *methods.TORCH_METHODS])
    told = section_of(page.write(done, GPU, "x"), PEERS)
    assert "| 192³ | torch.compile | none | trained | 450 ms | 1.50 |" in told
    assert "| a step of ours in the memory of torch.compile, " in told


def test_the_later_peers_wait_until_the_usual_ones_have_ended(tmp_path, child):
    child.fails = {methods.TORCH_COMPILED: process.ChildFailed("out of time", "ended at its deadline")}
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes, with_peers=True)
    done = GpuStudy(tmp_path, size, Trainings(tmp_path, card_bytes=GPU.memory_bytes, start=child), rehearsed=False)
    done.run(8, only=["peers"])
    assert outcomes(done) == {"peers": OUT_OF_TIME}
    assert {part.method for part in child.made} <= {methods.NONE, *scale.PEERS}


def test_without_its_usual_workspace_the_step_without_lms_is_no_measure():
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes)

    def trained(method: str, workspace: int | None, seconds: float) -> PartResult:
        part = size.part(method, 192, None, workspace_mib=workspace)
        return PartResult(part=part, outcome="trained", seconds=(seconds,), workspace_mib=str(workspace or 4096))

    lms, usual = trained(methods.LMS, 1024, 0.2), trained(methods.NONE, None, 0.1)
    one, other = trained(methods.NONE, 1024, 0.16), trained(methods.NONE, 256, 0.4)
    for plain, ratio in (([usual, one, other], 2.0), ([one, other], None), ([one], 1.25)):
        here = MethodComparison([*plain, lms], size.model, 192)
        assert here.ratio(lms) == (ratio and pytest.approx(ratio))
        assert here.ratio_within(lms) == pytest.approx(1.25)


def test_the_largest_cubes_are_found_between_neighbours(tmp_path, child):
    done = made(tmp_path, child)
    done.run(8)
    told = section_of(page.write(done, GPU, "x"), "The largest cube")
    for limit, method, share, limit_bytes in (
        ("14.9 GiB", methods.NONE, 1.0, 15258 * MIB),
        ("14.9 GiB", methods.LMS, 0.1, 15258 * MIB),
        ("none", methods.NONE, 1.0, 40 << 30),
    ):
        side = int((limit_bytes / BYTES_OF_VOXEL / share) ** (1 / 3)) // 16 * 16
        assert re.search(rf"\| {limit} \| {method} \| {side}³ \(.*\| {side + 16}³ \(out of memory\) \|  \|", told), (
            limit,
            told,
        )
    assert "| none | LMS | 512³" in told
    assert "the largest that is tried" in told


@pytest.mark.parametrize("last", [None, 0, 3, 7, 24])
def test_the_search_needs_few_trainings(last):
    sides = list(range(128, 513, 16))
    good = sides[: 0 if last is None else last + 1]
    for guess in sides:
        tried: list[int] = []
        expected = good[-1] if good else None
        assert sections.largest(partial(_trains, tried, good), sides, guess) == expected
        assert len(tried) == len(set(tried)) <= 10


def _trains(tried: list[int], good: list[int], side: int) -> bool:
    tried.append(side)
    return side in good


def test_no_training_is_run_twice(tmp_path, child):
    made(tmp_path, child).run(8)
    names = [part.name for part in child.made]
    assert len(names) == len(set(names))


def test_cubes_that_other_sections_trained_are_not_trained_again(tmp_path, child):
    size, runs = scale.of_rehearsal(), Trainings(tmp_path, start=child)
    large = runs.measure_all(sections.large_parts({}, size))
    child.made.clear()
    tried = sections.largest_cubes(runs, size)
    assert all(result in tried for result in large)
    places = {(r.part.method, r.part.resolution, r.part.limit_mib) for r in large}
    assert not places & {(part.method, part.resolution, part.limit_mib) for part in child.made}


def test_an_interrupted_study_goes_on(tmp_path, child):
    child.fails = {methods.TFLMS: KeyboardInterrupt()}
    first = made(tmp_path, child)
    with pytest.raises(KeyboardInterrupt):
        first.run(8)
    assert outcomes(first)["limits"] == INTERRUPTED
    assert "precision" not in outcomes(first)
    text = page.write(first, GPU, "x")
    assert "| In 16 bits | not run |" in text
    assert "Not complete: see above." in section_of(text, "What a limit costs")
    before = [part.name for part in child.made[:-1]]
    child.fails, child.made = {}, []
    again = made(tmp_path, child)
    again.run(8)
    assert set(outcomes(again).values()) == {DONE}
    assert not {part.name for part in child.made} & set(before)


def test_a_section_that_fails_is_named_and_the_others_go_on(tmp_path, child):
    child.fails = {methods.TFLMS: process.ChildFailed("failed", "ended by SIGSEGV; see its log")}
    done = made(tmp_path, child, place=lambda *_, **__: 1 / 0)
    done.run(8)
    ended = outcomes(done)
    assert {name for name, outcome in ended.items() if outcome == FAILED} == {"limits", "placement"}
    assert set(ended) == {section.name for section in SECTIONS}
    text = page.write(done, GPU, "x")
    assert "TFLMS auto-tune in 3,820 MiB, 2 profiled, workspace 128 MiB: ended by SIGSEGV" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "failed: ended by SIGSEGV" in section_of(text, "What a limit costs")
    child.fails, child.made = {}, []
    made(tmp_path, child).run(8)
    assert {part.method for part in child.made} == {methods.TFLMS}  # what failed is tried again


def test_time_is_shared_out_and_ends(tmp_path, child, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class Slow(child):
        def finish(self):
            now[0] += 30.0
            return super().finish()

    done = made(tmp_path, Slow)
    done.run(3)
    assert now[0] <= 1000 + 180 + 30
    assert max(child.deadlines) <= 1000 + 180
    short = {name for name, outcome in outcomes(done).items() if outcome == OUT_OF_TIME}
    assert "cubes" in short
    text = page.write(done, GPU, "x")
    assert "was not begun" in text
    made(tmp_path, child).run(60)
    assert set(outcomes(made(tmp_path, child)).values()) == {DONE}


def test_a_child_that_is_out_of_time_is_no_result(tmp_path, child):
    child.fails = {methods.LMS: process.ChildFailed("out of time", "ended at its deadline")}
    done = made(tmp_path, child)
    done.run(8)
    assert outcomes(done)["check"] == OUT_OF_TIME
    assert not list((tmp_path / "parts").glob("*-LMS-*"))


def test_a_child_ends_at_its_deadline(tmp_path, monkeypatch):
    script = tmp_path / "child.sh"
    script.write_text("#!/bin/sh\nexec sleep 100\n")
    script.chmod(0o755)
    monkeypatch.setattr(process.sys, "executable", str(script))
    with pytest.raises(process.ChildFailed) as caught:
        process.Child(
            StudyPart(method=methods.LMS, model="unet3d", resolution=16, limit_mib=9),
            tmp_path / "log",
            60,
            deadline=time.monotonic(),
        )
    assert caught.value.outcome == "out of time"


def test_without_deterministic_kernels_it_says_how_far_apart(tmp_path, child):
    class Refuses(child):
        def __init__(self, part, log, deadline):
            super().__init__(part, log, deadline)
            if part.deterministic:
                raise process.ChildFailed("failed", "UnimplementedError: no deterministic kernel")

    child.digests = ["abc", "abd"]
    done = made(tmp_path, Refuses)
    done.run(8)
    assert outcomes(done)["check"] == FAILED
    told = section_of(page.write(done, GPU, "x"), "Does it work here?")
    assert "The same bits" in told
    assert "Two runs without LMS were not always the same" in told


@pytest.mark.parametrize(
    ("digests", "slabs", "said"),
    [
        ("aaa", (), "**The same bits**"),
        ("aab", (), "**Not the same bits**, though"),
        ("abc", (), "does not repeat its own bits"),
        ("aab", ((0, 4),), "Sliced, so equal to rounding"),
        ("aa", (), "nothing can be said"),
    ],
)
def test_what_digests_say(digests, slabs, said):
    size = scale.of_rehearsal()
    results = [
        PartResult(
            part=part, outcome="trained", digest=digest, loss=-0.5, report={"slabs": slabs} if number == 2 else {}
        )
        for number, (part, digest) in enumerate(zip(sections.identity_parts(size), digests, strict=False))
    ]
    assert said in tables.verdict(results)
    expected = {"**The same bits**": check.YES, "**Not the same bits**, though": check.NO}
    assert check.bits(results).verdict == expected.get(said, check.UNKNOWN)


def checked(lms: dict, none: dict | None = None) -> dict[str, tuple[str, str]]:
    """question -> what was found, verdict; of a timed pair on a GPU."""
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes)
    limited, plain, _ = sections.timed_parts(size)
    usual = {"outcome": "trained", "device": "A100"}
    found = [
        PartResult(part=limited, **usual, **lms),
        PartResult(part=plain, **usual, **(none or {"seconds": (0.10, 0.10)})),
    ]
    lines = check.lines({result.part.name: result for result in found}, size)
    return {line.question: (line.found, line.verdict) for line in lines}


PLAN = {
    "unedited_step_seconds": 0.105, "predicted_step_seconds": 0.2, "predicted_peak_bytes": 700 * MIB, "swapped_out_bytes": 10**9,
}  # fmt: skip
SPEEDS = {
    "flops_per_second": 4e13, "bytes_per_second": 2.4e12, "swap_out_bytes_per_second": 5e10, "swap_in_bytes_per_second": 5e10,
}  # fmt: skip


def test_the_first_minute_says_what_is_well():
    moved = {"out_bytes": 1e9, "in_bytes": 1e9, "out_bytes_per_second": 4.9e10, "in_bytes_per_second": 1e10}
    told = checked({
        "seconds": (0.12, 0.12), "peak_bytes": 690 * MIB, "machine": SPEEDS, "report": PLAN,
        "profile": {"overlap_share": 0.91, **moved},
    })  # fmt: skip
    assert told["transfers run beside kernels"] == ("91% of their time, by the profiler (LMS)", check.YES)
    assert told["bytes go out as fast as the link"] == (
        "954 MiB a step at 49 GB/s, by the profiler; probe: 50 GB/s",
        check.YES,
    )
    assert told["bytes go in as fast as the link"][1] == check.NO
    assert told["step without swapping as predicted, to 10%"] == ("105 ms for 100 ms: 1.05 x", check.YES)
    assert told["step under LMS as predicted, to 10%"][1] == check.NO
    assert told["peak under LMS as predicted, to 5%"][1] == check.YES
    assert told["the limit is kept"][1] == check.YES
    assert told["half of the memory costs at most 1.06 x"] == ("1.20 x", check.NO)
    assert told["the probe of the machine is plausible"][1] == check.YES


def test_without_a_profile_the_counters_of_the_tier_tell():
    counted = {"swapped_out_bytes": 1e9, "swap_out_seconds": 0.02, "swapped_in_bytes": 1e9, "swap_in_seconds": 0.02}
    told = checked({
        "seconds": (0.12, 0.12), "machine": SPEEDS, "report": PLAN, "traffic": counted, "profile": {"error": "no CUPTI"}
    })  # fmt: skip
    assert told["transfers run beside kernels"] == ("50% of their time, by step times (LMS)", check.NO)
    assert told["bytes go out as fast as the link"][0].endswith("at 50 GB/s, by the tier's counters; probe: 50 GB/s")
    planned = checked({"seconds": (0.102, 0.102), "machine": SPEEDS, "report": PLAN})
    assert planned["transfers run beside kernels"] == ("90% of their time, by step times (LMS)", check.YES)
    assert planned["bytes go out as fast as the link"] == ("no transfer was seen", check.UNKNOWN)


def test_a_plan_that_moves_nothing_leaves_the_link_to_swapping_everything():
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes)
    usual = {"outcome": "trained", "device": "A100", "seconds": (0.1, 0.1), "machine": SPEEDS}
    moved = {"out_bytes": 1e9, "in_bytes": 1e9, "out_bytes_per_second": 4.9e10, "in_bytes_per_second": 4.9e10}
    profiles = [{"overlap_share": 0.01, "out_bytes": 4.0}, {}, {"overlap_share": 0.3, **moved}]  # the first: a loss
    plans = [{"swapped_out_bytes": 0}, {}, {"swapped_out_bytes": 10**9}]
    results = [
        PartResult(part=part, profile=profile, report=plan, **usual)
        for part, profile, plan in zip(sections.timed_parts(size), profiles, plans, strict=True)
    ]
    told = {line.question: line.cells()[1:] for line in check.lines({r.part.name: r for r in results}, size)}
    assert told[check.OVERLAP] == ("30% of their time, by the profiler (swap everything)", check.NO)
    assert told["bytes go in as fast as the link"][1] == check.YES


def test_a_probe_that_no_card_has_is_refused():
    slow = {**SPEEDS, "bytes_per_second": 1.25e11}
    told = checked({"seconds": (0.1, 0.1), "machine": slow, "report": PLAN})
    assert told["the probe of the machine is plausible"] == (
        "40 TFLOP/s, 125 GB/s of memory, 50 GB/s out, 50 GB/s in", check.NO
    )  # fmt: skip


def test_trainings_that_fail_have_a_verdict(tmp_path, child):
    child.fails = {methods.LMS: process.ChildFailed("failed", "CUDA_ERROR_ILLEGAL_ADDRESS")}
    done = made(tmp_path, child)
    done.run(8, only=["check"])
    assert outcomes(done) == {"check": FAILED}
    told = {line.question: line.cells()[1:] for line in check.lines(done.trainings.found, done.scale)}
    assert told["a step under LMS trains"] == ("failed", check.NO)
    assert told["the same weights with LMS and without, after 3 steps"][1] == check.UNKNOWN


def test_the_verdicts_are_printed_before_the_other_sections(command, capsys):
    assert command("--only", "check", "placement") == 0
    said = capsys.readouterr().out
    assert 0 < said.index("| the limit is kept |") < said.index("Is every op where it should be? done")


def test_the_floor_is_the_smallest_limit_that_lms_names(tmp_path, child):
    class Refuses(child):
        def __init__(self, part, log, deadline):
            if (part.limit_mib or 999) < 689:
                raise process.ChildFailed("does not fit", "too small", {"smallest_limit_bytes": 689 * MIB - 5})
            super().__init__(part, log, deadline)

    done = made(tmp_path, Refuses)
    done.run(8, only=["limits"])
    last = [r for r in tables.results(done.trainings.found, "limits", done.scale) if r.part.method == methods.LMS][-2:]
    assert [(r.part.limit_mib, r.outcome) for r in last] == [(192, "does not fit"), (689, "out of memory")]


class Watched(Imitation):
    """A child that says what it does, and when."""

    events: list[tuple[str, str]]
    pause = 0.01

    def __init__(self, part, log, deadline):
        super().__init__(part, log, deadline)
        self.events.append(("made", part.method))

    def step(self):
        self.events.append(("warm" if self.steps < self.part.warm_up else "timed", self.part.method))
        time.sleep(self.pause)
        self.events.append(("end", self.part.method))
        return super().step()


@pytest.fixture
def watched() -> type[Watched]:
    return type("Child", (Watched,), {"made": [], "deadlines": [], "fails": {}, "digests": ["abc"] * 2, "events": []})


GROUP = (methods.NONE, methods.LMS, methods.TFLMS, methods.SWAP_ALL)


def lockstep(tmp_path: Path, kind: type[Imitation], **more) -> tuple[Trainings, list[StudyPart]]:
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes)
    some = [size.part(method, 128, None, warm_up=2, steps=3, profiled=1) for method in GROUP]
    return Trainings(tmp_path, card_bytes=GPU.memory_bytes, side_by_side=4, start=kind, **more), some


def test_timed_steps_are_taken_in_turn_once_all_are_warm(tmp_path, watched):
    runs, some = lockstep(tmp_path, watched)
    assert [r.part.method for r in runs.measure_all(some)] == list(GROUP)
    steps = [event for event in watched.events if event[0] != "made"]
    first_timed = next(at for at, (what, _) in enumerate(steps) if what == "timed")
    assert [what for what, _ in steps[:first_timed]].count("warm") == 2 * len(GROUP)
    assert "warm" not in [what for what, _ in steps[first_timed:]]
    turns = steps[first_timed:]
    assert all(turns[at][0] == "timed" and turns[at + 1] == ("end", turns[at][1]) for at in range(0, len(turns), 2))
    methods = [method for what, method in turns if what == "timed"]
    assert sum(a != b for a, b in itertools.pairwise(methods)) == len(GROUP) - 1


def test_the_one_that_measures_ops_warms_up_first_on_a_quiet_device(tmp_path, watched):
    runs, some = lockstep(tmp_path, watched)
    runs.measure_all(some)
    steps = [event for event in watched.events if event[0] != "made"]
    assert steps[:4] == [("warm", methods.LMS), ("end", methods.LMS)] * 2


def test_one_for_each_workspace_measures_before_the_others(tmp_path, watched):
    runs, some = lockstep(tmp_path, watched)
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes)
    some += [size.compared(methods.LMS, 128, limit, warm_up=2) for limit in (1000, 2000)]
    assert {part.workspace_mib for part in some} == {None, 128}
    runs.side_by_side = len(some)
    runs.measure_all(some)
    warmed = [method for what, method in watched.events if what == "warm"]
    assert warmed[:4] == [methods.LMS] * 4
    measuring = [event for event in watched.events if event[0] != "made"][:8]
    assert (
        measuring == [("warm", methods.LMS), ("end", methods.LMS)] * 4
    )  # one after the other: none disturbs the other
    assert sorted(warmed[4:]) == sorted([method for method in GROUP if method != methods.LMS] * 2 + [methods.LMS] * 2)


def test_the_child_has_the_workspace_of_its_part(tmp_path, monkeypatch):
    script = tmp_path / "child.sh"
    script.write_text(f'#!/bin/sh\necho "{{\\"ready\\": \\"${process.WORKSPACE}\\"}}"\n')
    script.chmod(0o755)
    monkeypatch.setattr(process.sys, "executable", str(script))
    part = StudyPart(method=methods.LMS, model="unet3d", resolution=16, workspace_mib=256)
    assert process.Child(part, tmp_path / "log", 60).ready == {"ready": "256"}


def test_the_others_wait_no_longer_than_it_measures(tmp_path, watched):
    class Measures(watched):
        def step(self):
            if self.part.method == methods.LMS and self.steps == 0:
                self.when_measured()
                time.sleep(0.3)  # plans
            return super().step()

    runs, some = lockstep(tmp_path, Measures)
    runs.measure_all(some)
    assert next(method for what, method in watched.events if what == "warm") != methods.LMS


def test_one_that_ends_early_does_not_hold_up_the_others(tmp_path, watched):
    watched.fails = {
        methods.LMS: process.ChildFailed("out of memory", "x"),
        methods.TFLMS: process.ChildFailed("failed", "y"),
    }
    runs, some = lockstep(tmp_path, watched)
    assert [r.outcome for r in runs.measure_all(some)] == ["trained", "out of memory", "failed", "trained"]


def test_one_that_hangs_costs_the_others_nothing(tmp_path, watched):
    class Hangs(watched):
        def step(self):
            if self.part.method == methods.LMS:
                time.sleep(4.0)
                self.events.append(("hung", methods.LMS))
                raise process.ChildFailed("out of time", "ended at its deadline")
            return super().step()

        def kill(self):
            self.events.append(("killed", self.part.method))
            super().kill()

    runs, some = lockstep(tmp_path, Hangs)
    runs.deadline = time.monotonic() + 4.0
    with pytest.raises(trainings.OutOfTime, match="LMS"):
        runs.measure_all(some)
    first_timed = [what for what, _ in watched.events].index("timed")
    assert watched.events.index(("killed", methods.LMS)) < first_timed < watched.events.index(("hung", methods.LMS))
    assert {r.part.method for r in runs.found.values()} == set(GROUP) - {methods.LMS}
    assert len(list((tmp_path / "parts").glob("*.json"))) == 3


def test_a_group_fits_the_card(tmp_path, watched):
    sizes = {methods.NONE: 16, methods.LMS: 5, methods.TFLMS: 20, methods.SWAP_ALL: 10}
    runs, some = lockstep(tmp_path, watched, need_bytes=lambda part: sizes[part.method] << 30)
    assert [[part.method for part in group] for group in runs._groups(some)] == [
        [methods.NONE, methods.LMS], [methods.TFLMS, methods.SWAP_ALL]
    ]  # fmt: skip
    size = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes)
    assert size.need(size.part(methods.LMS, 192, 5120)) == 5 << 30
    assert 7 << 30 < size.need(size.part(methods.NONE, 192, None)) < 11 << 30


def test_a_limit_above_the_card_is_not_tried(tmp_path, child):
    small = Trainings(tmp_path, card_bytes=4 << 30, start=child)
    result = small.measure(scale.of_gpu("mixed_float16", 4 << 30).part(methods.LMS, 192, 5120))
    assert (result.outcome, result.detail) == ("not possible", "the card has 4.00 GiB for TensorFlow")
    assert not child.made
    assert scale.of_gpu("mixed_float16", 4 << 30).large.limit_mib == 4096


def test_a_card_of_before_bfloat16_computes_in_float16():
    assert Card(name="V100", capability=(7, 0)).half_precision == "mixed_float16"
    assert GPU.half_precision == Card(name="CPU").half_precision == "mixed_bfloat16"


def test_without_a_gpu_it_refuses_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(card.machine, "has_nvidia_driver", lambda: False)
    assert gpu_case_study.main(["--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "found no NVIDIA driver" in said[0]
    assert "--rehearse" in said[0]
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(card.machine, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(card, "_asked", lambda without_gpu: {"name": "CPU", "capability": [0, 0]})
    assert gpu_case_study.main(["--minutes", "0.001", "--output", str(tmp_path / "out")]) == 2
    assert "TensorFlow found no GPU" in capsys.readouterr().err


def test_a_driver_without_its_proc_file_is_found(tmp_path):
    (tmp_path / "nvidiactl").touch()
    assert card.machine.has_nvidia_driver((tmp_path / "version", tmp_path / "nvidiactl"))
    assert not card.machine.has_nvidia_driver((tmp_path / "version",))


def test_a_child_without_an_answer_is_quoted(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\necho noise >&2\necho \"ModuleNotFoundError: No module named 'filelock'\" >&2\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(process.sys, "executable", str(script))
    with pytest.raises(card.InputError, match=r"exit code 1.*its last lines: noise / .*No module named 'filelock'"):
        card.found(rehearsed=True)


@pytest.fixture
def command(tmp_path, child, monkeypatch) -> Callable[..., int]:
    """The command on an imitated GPU."""
    monkeypatch.setattr(card, "found", lambda rehearsed: GPU)
    monkeypatch.setattr(trainings, "_child", child)
    monkeypatch.setattr(placement, "ask", lambda *_, **__: PLACED)
    return lambda *words: gpu_case_study.main(["--output", str(tmp_path / "out"), *words])


def test_the_command_ends_with_0_when_done(command, tmp_path, capsys):
    assert command() == 0
    text = (tmp_path / "out/report.md").read_text()
    assert text in capsys.readouterr().out
    assert "--output" in text.split("Made by `")[1]
    assert known(tmp_path / "out").machine == str(GPU)


def test_the_command_ends_with_1_where_a_section_failed(command, child, tmp_path, capsys):
    child.fails = {methods.TFLMS: process.ChildFailed("failed", "ended by SIGSEGV; see its log")}
    assert command() == 1
    assert "these sections failed: limits" in capsys.readouterr().err
    assert known(tmp_path / "out").exit_code == 1


def test_the_command_ends_with_130_when_interrupted(command, child, tmp_path, capsys):
    child.fails = {methods.TFLMS: KeyboardInterrupt()}
    assert command() == 130
    assert "run the same command again to go on" in capsys.readouterr().err
    assert "| interrupted |" in (tmp_path / "out/report.md").read_text()
    child.fails = {}
    assert command() == 0


def test_without_time_nothing_is_begun(command, child, tmp_path):
    assert command("--minutes", "0.001") == 0
    assert not child.made
    assert (
        "| out of time | isensee2017 at 96, LMS in 768 MiB, 2 profiled, workspace 64 MiB was not begun"
        in (tmp_path / "out/report.md").read_text()
    )


def test_results_of_another_machine_are_not_mixed(tmp_path):
    gpu_case_study._remember(GPU, False, tmp_path)
    gpu_case_study._remember(GPU, False, tmp_path)
    with pytest.raises(gpu_case_study.errors.InputError, match=r"found results of A100, and this is CPU"):
        gpu_case_study._remember(Card(name="CPU"), True, tmp_path)


def test_the_report_shows_a_run_of_another_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--only", "gpu", "--output", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert report.main(words) == 0
    assert "Not run: A GPU, for ten minutes" in (tmp_path / "out/report.md").read_text()
    folder = tmp_path / gpu_case_study.OUTPUT
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("# The GPU case study\n\n## The largest cube\n\n| a |\n| --- |\n| 432³ |\n")
    gpu_case_study.runs.note(folder, "python -m experiments.gpu_case_study", str(GPU), exit_code=1, seconds=470.0)
    assert report.main(words) == 0
    text = (tmp_path / "out/report.md").read_text()
    assert "| 432³ |" in text
    assert "A100 (40.0 GiB for TensorFlow)" in text
    assert "ended with exit code 1" in text
    assert "Not run" not in text


def test_wrong_places_are_found():
    class Op:
        def __init__(self, name: str, device: str, reads: tuple = (), kind: str = "Identity") -> None:
            self.name, self.device, self.op, self.type = name, f"/device:{device}", self, kind
            self.inputs = [*reads]

    def graph(out: str = "GPU:0", back: str = "GPU:0", reader: str = "GPU:0"):
        a = Op("a", "GPU:0")
        one = Op("lms/swap_out/a", out, (a,), "LmsSwapOut")
        two = Op("lms/swap_in/a/0", back, (one,), "LmsArrive")
        ops = [a, one, two, Op("z", reader, (two,)), Op("lms/recompute/a", reader), Op("elsewhere", "CPU:0")]
        return type("Graph", (), {"get_operations": lambda self: ops})()

    assert placement.wrong(graph(), "GPU:0") == []
    assert placement.wrong(graph(out="CPU:0"), "GPU:0") == ["lms/swap_out/a"]
    assert placement.wrong(graph(back="CPU:0"), "GPU:0") == ["lms/swap_in/a/0"]
    assert placement.wrong(graph(reader="CPU:0"), "GPU:0") == ["z", "lms/recompute/a"]


@pytest.mark.parametrize("with_peers", [True, False])
def test_a_rehearsal_trains_all_that_a_card_does(with_peers):
    def kinds(size: scale.Scale) -> set[tuple]:
        first = [part for one in SECTIONS for part in one.parts({}, size)]
        found = {part.name: PartResult(part=part, outcome="trained") for part in first}
        return {(one.name, *kind(part, size)) for one in SECTIONS for part in one.parts(found, size)}

    def kind(part: StudyPart, size: scale.Scale) -> tuple:
        method = methods.LMS if part.method == size.lms else part.method
        workspace = (None, size.workspace_mib, size.check_workspace_mib).index(part.workspace_mib)
        return method, part.precision, part.deterministic, workspace

    card = scale.of_gpu("mixed_bfloat16", GPU.memory_bytes, with_peers=with_peers)
    assert kinds(scale.of_rehearsal(with_peers=with_peers)) == kinds(card)


REHEARSED = [s.name for s in SECTIONS] if THOROUGH else ["check", "large", "placement"]
"""Nine processes of some thirty; `limits` and `cubes` train the same in other sizes."""
patient = pytest.mark.timeout(3600)  # some twenty trainings, on cores that others may need


FORKING = """
import sys
from lms3d.experiments import gpu_case_study
from lms3d.experiments.harness import child
first = sys.argv.index("--rehearse")
python = sys.argv[1:first]
child.of_module = lambda name: [*python, "-m", name]
sys.exit(gpu_case_study.main(sys.argv[first:]))
"""
"""The command, whose children are forks of what is imported already."""


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory, commands) -> Path:
    """A rehearsal by the real command."""
    output = tmp_path_factory.mktemp("rehearsal")
    words = ["--rehearse", "--minutes", "60", "--output", output, "--only", *REHEARSED]
    done = commands.run(["-c", FORKING, *commands.python(), *words], timeout=3600)
    assert done.returncode == 0, done.stderr
    return output


@patient
def test_rehearsal_runs_its_sections(rehearsed):
    states = {path.stem: json.loads(path.read_text()) for path in (rehearsed / "sections").glob("*.json")}
    assert {name: state["outcome"] for name, state in states.items()} == dict.fromkeys(REHEARSED, study.DONE)
    text = (rehearsed / "report.md").read_text()
    assert "A rehearsal on a processor" in text
    assert ("Nothing measured" in text) == ("not run" in text) == (not THOROUGH)
    placed = states["placement"]["values"]
    assert placed["computes_on"] == "CPU:0"
    assert placed["swap_outs"] > 0
    assert placed["recomputes"] > 0
    assert placed["wrong"] == []
    assert placed["same_bits"]


@patient
def test_rehearsal_keeps_what_is_promised(rehearsed):
    text = (rehearsed / "report.md").read_text()
    assert "**The same bits** with LMS and without.\n" in section_of(text, "Does it work here?")
    size, found = scale.of_rehearsal(), trainings.Trainings(rehearsed).found
    without, with_lms = tables.results(found, "large", size)
    assert with_lms.trained
    assert with_lms.peak_bytes <= size.large.limit_mib * MIB < without.peak_bytes
    limited = [r for r in tables.results(found, "limits", size) if r.part.method == methods.COPIED]
    assert len(limited) > len(size.limits_mib) or not THOROUGH
    assert all(r.trained for r in limited[: len(size.limits_mib)])
    assert all(r.peak_bytes <= r.part.limit_mib * MIB for r in limited if r.trained)
    everything = next(r for r in tables.results(found, "check", size) if r.part.method == methods.SWAP_ALL)
    assert everything.profile["out_bytes"] > 0
    assert 0 < everything.profile["overlap_share"] <= 1


@patient
def test_rehearsal_goes_on_with_nothing_to_do(rehearsed, child):
    size = scale.of_rehearsal()
    again = GpuStudy(rehearsed, size, Trainings(rehearsed, start=child), rehearsed=True, place=lambda *_, **__: 1 / 0)
    again.run(8, only=REHEARSED)
    assert not child.made
    assert outcomes(again) == dict.fromkeys(REHEARSED, DONE)
