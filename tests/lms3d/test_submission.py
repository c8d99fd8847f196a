"""`lms3d.evaluate --submission`: label maps as a challenge wants them, and refusals where maps would be mixed or lost."""

from __future__ import annotations

import shutil

import nibabel as nib
import numpy as np
import pytest

from lms3d import evaluate
from lms3d.training.run_lock import RunLock
from tests.lms3d.test_evaluate import write_predictions

pytestmark = pytest.mark.usefixtures("unrendered")

CASES = [f"BraTS20_Training_{number:03d}" for number in range(1, 5)]


def submit(tmp_path, name="p", *more):
    return evaluate.main([str(tmp_path / name), "--submission", str(tmp_path / "up"), *more])


def contents(tmp_path):
    return {path.name: path.read_bytes() for path in (tmp_path / "up").iterdir()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (np.diag([-1, 1, 1, 1]), "found axes RPS, voxels of 2 x 2 x 3 mm; expected axes LPS"),
        (np.diag([2, 2, 2, 1]), "found axes LPS, voxels of 4 x 4 x 6 mm"),
    ],
    ids=["mirrored", "coarse"],
)
def test_a_copy_of_the_images_on_another_grid_is_refused(tiny_brats, tmp_path, capsys, change, says):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    copy = shutil.copytree(tiny_brats, tmp_path / "copy")
    for path in copy.rglob("*_003_*.nii.gz"):
        image = nib.load(path)
        nib.save(nib.Nifti1Image(np.asarray(image.dataobj), image.affine @ change), path)
    assert submit(tmp_path, "p", "--truth", str(copy)) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "BraTS20_Training_003" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "up").exists()


def test_the_same_command_again_changes_nothing(tiny_brats, tmp_path):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    assert submit(tmp_path) == 0
    whole = contents(tmp_path)
    assert sorted(whole) == [f"{case}.nii.gz" for case in CASES]
    (tmp_path / "up" / f"{CASES[1]}.nii.gz").unlink()  # as a kill leaves it, between two renames
    (tmp_path / "up/.unfinished").mkdir()
    (tmp_path / "up/.unfinished" / f"{CASES[3]}.nii.gz").write_text("half")
    assert submit(tmp_path) == 0
    assert contents(tmp_path) == whole


def test_what_another_run_wrote_is_neither_mixed_in_nor_lost(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    write_predictions(tiny_brats, tmp_path / "three", 16, ids=set(CASES[:3]))
    write_predictions(tiny_brats, tmp_path / "other", 16, lambda labels: np.where(labels == 4, 1, labels))
    assert submit(tmp_path) == 0
    whole = contents(tmp_path)
    capsys.readouterr()
    assert submit(tmp_path, "three") == 2
    assert f"up: found {CASES[3]}.nii.gz, which is none of its cases; expected an empty" in capsys.readouterr().err
    assert submit(tmp_path, "other") == 2
    assert f"up: found another {CASES[0]}.nii.gz than it would write; expected an empty" in capsys.readouterr().err
    assert contents(tmp_path) == whole


def test_a_submission_that_fails_leaves_no_part_of_it(tiny_brats, tmp_path):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    (tmp_path / "p/native" / f"{CASES[3]}.nii.gz").unlink()
    assert submit(tmp_path) == 2
    assert not contents(tmp_path)


def test_two_submissions_do_not_share_a_folder(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    (tmp_path / "up").mkdir()
    with RunLock() as lock:
        assert lock.take(tmp_path / "up")
        assert submit(tmp_path) == 2
    assert f"--submission {tmp_path / 'up'} is in use by process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--scoring", "nonsense"), ("--labels", "bad"), ("--prediction-labels", "rubbish"), ("--output", "somewhere"),
        ("--margin", "0.1"), ("--worst", "0"),
    ],
)  # fmt: skip
def test_options_of_scores_are_refused(tiny_brats, tmp_path, capsys, option, value):
    write_predictions(tiny_brats, tmp_path / "p", 16, ids=set(CASES[:1]))
    assert submit(tmp_path, "p", option, value) == 2
    error = capsys.readouterr().err
    assert f"{option} is for scores, and --submission only writes label maps; leave it out" in error
    assert error.count("\n") == 1


def test_label_maps_of_another_program_are_called_that(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "p", 16, ids=set(CASES[:1]))
    assert submit(tmp_path, "p/native", "--truth", str(tiny_brats)) == 2
    assert "--submission: found label maps of another program in " in capsys.readouterr().err
