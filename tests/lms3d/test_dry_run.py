"""`python -m lms3d.train --dry-run`: a step that is predicted not to fit is refused before it is tried."""

import re
from dataclasses import replace

import pytest

from lms3d import train
from lms3d.engine.prediction import Decision
from lms3d.keras_step.report import Report
from lms3d.training import compilation, needs, session

MIB = 1 << 20
PREDICTED = Report(
    step="train", planner="hybrid", tier="disk", limit_bytes=100 * MIB, unedited_peak_bytes=380 * MIB,
    predicted_peak_bytes=190 * MIB, unedited_limit_bytes=400 * MIB, floor_bytes=200 * MIB, unedited_step_seconds=1.0,
    predicted_step_seconds=2.0, peak_tensors=(("conv/Conv3D:0", 32 * MIB), ("(weights)", 20 * MIB)),
)  # fmt: skip


@pytest.fixture
def dry_run(monkeypatch, capsys):
    """The command with a step that was planned already, under the limit of the given number of MiB."""
    monkeypatch.setattr(compilation, "compiled_model", lambda options, task: None)
    monkeypatch.setattr(session, "_start_tensorflow", lambda options, world: options.memory_limit)

    def run(mib: int, *arguments: str, **changes: object) -> tuple[int, str, str]:
        report = replace(PREDICTED, limit_bytes=mib * MIB, **changes)
        monkeypatch.setattr(needs, "estimate_step", lambda *_, **__: report)
        code = train.main(["--dry-run", "--memory-limit", f"{mib}MiB", *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("mib", "option"), [(199, "--lms"), (399, "--no-lms")])
def test_below_the_smallest_limit_it_is_one_line_and_exit_code_3(dry_run, mib, option):
    code, out, err = dry_run(mib, option)
    assert code == 3
    assert "nothing was trained" not in out
    assert "# " not in out  # no plan
    assert err.count("\n") == 1
    for words in (f"{mib} MiB", "smallest", "200 MiB with LMS", "400 MiB without", "raise"):
        assert words in err
    assert ("--lms" in err) == (option == "--no-lms")


def test_given_parameters_that_do_not_fit_are_refused_where_others_would_fit(dry_run):
    given = {"planner": "tflms", "predicted_peak_bytes": 300 * MIB}
    code, out, err = dry_run(299, "--swapout-threshold", "100", **given)
    assert (code, err.count("\n")) == (3, 1)
    assert "nothing was trained" not in out
    for words in ("299 MiB", "TFLMS parameters that were given", "300 MiB", "leave one or all of them out"):
        assert words in err
    assert dry_run(300, "--swapout-threshold", "100", **given)[::2] == (0, "")


def test_tensors_that_stay_share_a_row(dry_run):
    kept = [Decision(tensor=f"kept_{number}", bytes=MIB, action="keep") for number in range(300)]
    swapped = Decision(tensor="swapped", bytes=MIB, action="swap", copies=1)
    _, out, _ = dry_run(300, decisions=(*kept, swapped))
    assert "| `swapped` | 1.00 MiB | swap | 1 |" in out
    assert "| (300 others) | 300 MiB together | keep |  |" in out
    assert "kept_" not in out
    assert "kept_7" in replace(PREDICTED, decisions=(*kept, swapped)).to_markdown()


def test_printed_a_report_is_its_headline_and_figures():
    lines = str(PREDICTED).splitlines()
    assert lines[0].startswith(
        "The train step does not fit in 100 MiB: the smallest limit is 200 MiB with LMS and 400 MiB without."
    )
    assert re.search(r"^  memory limit +100 MiB$", str(PREDICTED), re.MULTILINE)
    assert not PREDICTED.fits
    assert replace(PREDICTED, limit_bytes=200 * MIB).fits
    assert "does not fit" not in str(replace(PREDICTED, limit_bytes=200 * MIB))
    assert not replace(PREDICTED, floor_bytes=None, limit_bytes=189 * MIB).fits


@pytest.mark.parametrize(("mib", "option"), [(200, "--lms"), (400, "--lms"), (400, "--no-lms")])
def test_from_there_on_the_plan_is_printed(dry_run, mib, option):
    code, out, err = dry_run(mib, option)
    assert (code, err) == (0, "")
    assert "nothing was trained" in out
