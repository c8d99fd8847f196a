"""The entry point of training: options and errors, without a training."""

import pytest

from lms3d import train
from lms3d.data.errors import DataError
from lms3d.errors import InputError
from lms3d.training import run_folder, session


@pytest.fixture
def ending(monkeypatch, tmp_path):
    """`ending(error)`: exit code of a training that ends so."""

    def run(error: BaseException) -> int:
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(session, "train", fail)
        return train.main(["--output", str(tmp_path / "run")])

    return run


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("UNKNOWN: DataError: a.nii.gz: found nothing\n\nTraceback"),  # as tf.data tells it
        DataError("a.nii.gz: found nothing"),
        InputError("a.nii.gz: found nothing"),
    ],
)
def test_wrong_input_is_one_line_wherever_it_is_found(ending, capsys, error):
    assert ending(error) == 2
    assert capsys.readouterr().err == "lms3d: error: a.nii.gz: found nothing\n"


def test_a_defect_keeps_its_traceback(ending):
    with pytest.raises(RuntimeError, match="a defect"):
        ending(RuntimeError("a defect"))


@pytest.mark.parametrize(
    "option",
    ["--slabs 16", "--swapout-threshold 40", "--swapin-ahead 3", "--swapin-groupby 2", "--sync-mode 0", "--serialization 3",
     "--serialization-by-size 1"],
)  # fmt: skip
def test_what_changes_the_plan_is_refused_where_there_is_none(monkeypatch, capsys, option):
    monkeypatch.setattr(session, "dry_run", lambda *_: None)
    assert train.main(["--dry-run", "--no-lms", *option.split()]) == 2
    assert capsys.readouterr().err == (
        f"lms3d: error: {option.split()[0]}: with --no-lms there is no plan; leave one of them out\n"
    )
    assert train.main(["--dry-run", *option.split()]) == 0


def test_bits_are_recorded_of_jobs_that_can_be_repeated(capsys):
    assert train.main(["--elastic", "--record-bits", "bits"]) == 2
    assert capsys.readouterr().err.startswith("lms3d: error: --record-bits: a job that changes its ranks (--elastic)")


def test_a_dry_run_has_no_bits(capsys):
    assert train.main(["--dry-run", "--record-bits", "bits"]) == 2
    assert capsys.readouterr().err.startswith("lms3d: error: --record-bits: a dry run (--dry-run) takes no steps")


def test_code_is_noted_before_anything_else(monkeypatch):
    noted = []
    monkeypatch.setattr(train.circumstances, "note_code", lambda: noted.append("code"))
    monkeypatch.setattr(train.run_folder, "planned", lambda *_, **__: noted.append("options"))
    monkeypatch.setattr(session, "dry_run", lambda *_: None)
    monkeypatch.setattr(train, "task_of", lambda _: None)
    assert train.main(["--dry-run"]) == 0
    assert noted == ["code", "options"]


def test_where_to_swap_may_be_said_of_every_job(monkeypatch):
    monkeypatch.setattr(session, "dry_run", lambda *_: None)
    assert train.main(["--dry-run", "--no-lms", "--swap-dir", "/swap", "--swap-tier", "disk"]) == 0


def test_a_run_begins_with_one_set_of_weights(capsys):
    assert train.main(["--start-from", "a", "--weights", "b"]) == 2
    assert "--weights: not allowed with argument --start-from" in capsys.readouterr().err


def test_a_dry_run_chooses_no_folder(monkeypatch):
    monkeypatch.setattr(run_folder, "choose_run", None)
    asked = []
    monkeypatch.setattr(session, "dry_run", lambda options, task: asked.append((options.resolution, task.axes)))
    assert train.main(["--dry-run", "--resolution", "64"]) == 0
    assert asked == [(64, 3)]
