"""The aims of the GPU study beside made-up results."""

from __future__ import annotations

import pytest

from lms3d.experiments.accelerator import aims, scale, tables
from lms3d.experiments.accelerator.aims import MET, MISSED, NOT_MEASURED
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import MIB, PartResult, StudyPart

GIB = 1 << 30
SIZE = scale.of_gpu("mixed_bfloat16", 40 * GIB, with_peers=True)
COMPILED, BFLOAT16 = methods.TORCH_COMPILED, f"{methods.TORCH_COMPILED}, bfloat16"


def trained(part: StudyPart, seconds: float, gib: float) -> PartResult:
    return PartResult(part=part, outcome="trained", seconds=(seconds,), peak_bytes=int(gib * GIB))


def without(seconds: float = 0.1, gib: float = 7.46, **more: object) -> PartResult:
    return trained(SIZE.part(methods.NONE, 192, None, **more), seconds, gib)


def with_lms(number: int, seconds: float) -> PartResult:
    """Within the limit of this number."""
    limit = SIZE.limits_mib[number]
    return trained(SIZE.compared(methods.LMS, 192, limit), seconds, 0.9 * limit / 1024)


def peer(method: str, seconds: float, gib: float) -> PartResult:
    return trained(SIZE.part(method, 192, None), seconds, gib)


def told(section: str, *results: PartResult) -> dict[str, tuple[str, ...]]:
    """What is aimed at -> at most, found, verdict."""
    some = aims.of(section, {result.part.name: result for result in results}, SIZE)
    return {aim.what: aim.cells()[1:] for aim in some}


def test_the_limits_are_the_shares_that_are_aimed_at():
    shares = [limit * MIB / (7.46 * GIB) for limit in SIZE.limits_mib]
    assert shares == pytest.approx([0.5, 0.33, 0.2, 0.1], abs=1e-3)
    assert len(shares) == len(aims.RATIOS)
    assert SIZE.rival_mib == SIZE.limits_mib[0]  # half, as the profile's title has it
    assert [SIZE.compared(methods.LMS, 192, limit).workspace_mib for limit in SIZE.limits_mib] == [128, 128, 128, 128]


def test_steps_and_peaks_beside_the_aims_of_limits():
    refused = PartResult(part=with_lms(3, 1.0).part, outcome="does not fit")
    found = told("limits", without(0.1, 7.46), with_lms(0, 0.102), with_lms(1, 0.12), refused)
    assert found == {
        "192³ without LMS: step": ("120 ms", "100 ms", MET),
        "192³ without LMS: peak": ("8.50 GiB", "7.46 GiB", MET),
        "LMS in 3.73 GiB, 50% of that: step": ("1.03 x no LMS", "1.02 x no LMS", MET),
        "LMS in 2.46 GiB, 33% of that: step": ("1.10 x no LMS", "1.20 x no LMS", MISSED),
        "LMS in 1.49 GiB, 20% of that: step": ("1.25 x no LMS", "", NOT_MEASURED),
        "LMS in 764 MiB, 10% of that: step": ("1.50 x no LMS", "does not fit", MISSED),
    }
    slow = told("limits", without(0.13, 8.6))
    assert [verdict for *_, verdict in slow.values()][:2] == [MISSED, MISSED]


def test_without_the_step_without_lms_no_ratio_is_known():
    failed = PartResult(part=without().part, outcome="failed", detail="x")
    for results in ([with_lms(0, 0.1)], [with_lms(0, 0.1), failed]):
        assert {verdict for *_, verdict in told("limits", *results).values()} == {NOT_MEASURED}


def test_sixteen_bits_are_held_against_float32():
    half = without(0.066, 3.98, precision="mixed_bfloat16")
    assert told("precision", without(0.1, 7.46), half) == {
        "mixed_bfloat16 without LMS: step": ("0.70 x float32", "0.66 x float32", MET),
        "mixed_bfloat16 without LMS: peak": ("0.50 x float32", "0.53 x float32", MISSED),
    }
    assert {verdict for *_, verdict in told("precision", half).values()} == {NOT_MEASURED}


def test_pytorch_is_held_against_our_fastest_step_in_its_memory():
    ours = [without(0.088, 7.46), with_lms(0, 0.1), with_lms(2, 0.3)]
    rows = [
        peer(methods.TORCH, 0.2, 12.0), peer(COMPILED, 0.095, 7.0), peer(methods.TORCH_SAVE_ON_CPU, 0.69, 2.0),
        peer(BFLOAT16, 0.06, 6.0),
    ]  # fmt: skip
    found = told("peers", *ours, *rows, without(0.058, 3.98, precision="mixed_bfloat16"))
    assert len(found) == len(methods.TORCH_METHODS)
    assert [line for line in found.items() if line[1][-1] != NOT_MEASURED] == [
        ("a step of ours in the memory of PyTorch, 12.0 GiB", ("200 ms", "88 ms (no LMS, 7.46 GiB)", MET)),
        ("a step of ours in the memory of torch.compile, 7.00 GiB", ("95 ms", "100 ms (LMS, 3.73 GiB)", MISSED)),
        ("a step of ours in the memory of torch.compile, bfloat16, 6.00 GiB", ("60 ms", "58 ms (no LMS, 3.98 GiB)", MET)),
        ("a step of ours in the memory of torch save_on_cpu, 2.00 GiB", ("690 ms", "300 ms (LMS, 1.49 GiB)", MET)),
    ]  # fmt: skip


def test_in_less_memory_than_any_of_ours_nothing_is_known():
    assert aims.fastest([without(), with_lms(3, 1.2)], 0.5 * GIB) is None
    assert aims.fastest([without()], None) is None


def test_the_aims_stand_above_the_table_of_their_section():
    found = {result.part.name: result for result in (without(), with_lms(0, 0.102))}
    text = tables.table(found, "limits", SIZE)
    assert text.index(aims.HEAD) < text.index(
        "| LMS in 3.73 GiB, 50% of that: step | 1.03 x no LMS | 1.02 x no LMS | met |"
    )
    assert "| cube | method |" in text.split("| met |")[-1]
    assert tables.table({}, "limits", SIZE) == ""
    assert aims.HEAD not in tables.table(found, "large", SIZE)
