"""`python -m lms3d.data.prepare`, as a newcomer sees it."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lms3d.data.brats import layouts
from lms3d.data.brats.preprocess import cube
from lms3d.data.errors import DataError
from lms3d.data.prepare import main
from lms3d.data.segmentation import layouts as organ_layouts
from lms3d.data.segmentation.grid import Grid
from lms3d.data.volumes import cache
from lms3d.ranks.world import World
from lms3d.tasks.brats import material
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.segmentation import material as organs
from lms3d.tasks.segmentation.options import SegmentationConfig
from tests.data.small_data import random_case, write_case
from tests.data.small_volumes import write_nnunet

ROOT = Path(__file__).parents[2]


def test_from_the_command_line(data_set, tmp_path):
    command = [
        sys.executable,
        "-m",
        "lms3d.data.prepare",
        str(data_set),
        "--resolution",
        "16",
        "--cache",
        str(tmp_path / "c"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    assert "5 cases of BraTS 2020, labels of brats2020, 0 without truth" in done.stdout
    built = Path(done.stdout.split("cache: ")[1].splitlines()[0])
    assert f"trainings find it with LMS3D_CACHE={tmp_path / 'c'}" in done.stdout
    assert built.parent == tmp_path / "c/cubes"
    assert len(json.loads((built / "index.json").read_text())["ids"]) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["{empty}"], "found no case; expected folders"),
        (["{absent}"], "found nothing; expected a folder"),
        (["{set}", "--resolution", "50"], "--resolution: found 50; expected a multiple of 16"),
        (["{set}", "--resolution", "0"], "--resolution: found 0"),
        (["{set}", "--labels", "2020"], "--labels: found '2020'; expected one of"),
        (["{set}", "--resolution", "abc"], "--resolution: invalid int value: 'abc'"),
        (["{set}", "--workers", "0"], "workers: found 0"),
        (["{set}", "--cache", "/proc/nowhere"], "expected a folder that can be written to"),
        (["x" * 300], f"{'x' * 300}: found File name too long; expected a readable folder; choose a shorter one"),
        (
            ["x" * 300 + ".csv"],
            "xxx.csv: found File name too long; expected a path that you can use; choose a shorter one",
        ),
        (["{set}", "--cache", "x" * 300], "found File name too long; expected a folder that can be written to"),
        ([""], "argument DATA: an empty path; name a file or a folder"),
        (["{set}", "--cache", ""], "argument --cache: an empty path"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(data_set, tmp_path, capsys, options, expected):
    (tmp_path / "empty").mkdir()
    places = {"empty": tmp_path / "empty", "absent": tmp_path / "absent", "set": data_set}
    arguments = [option.format(**places) for option in options]
    if "--cache" not in arguments:
        arguments += ["--cache", str(tmp_path / "c")]
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert lines[0].startswith("data.prepare: error: ")
    assert expected in lines[0]


def test_a_bad_file_is_named(data_set, tmp_path, capsys):
    (data_set / "BraTS20_Training_002" / "BraTS20_Training_002_t1ce.nii.gz").write_bytes(b"\x1f\x8b")
    assert main([str(data_set), "--resolution", "16", "--cache", str(tmp_path / "c"), "--workers", "1"]) == 2
    assert "BraTS20_Training_002_t1ce.nii.gz: found a file that cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["a folder", "a manifest"])
def test_a_case_without_one_modality_is_named_or_left_out(data_set, tmp_path, capsys, how, monkeypatch):
    """Once it has been left out, training works without it."""
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "c"))
    lost = data_set / "BraTS20_Training_002" / "BraTS20_Training_002_t2.nii.gz"
    lost.unlink()
    data, named = data_set, "BraTS20_Training_002: found no t2 image; expected BraTS20_Training_002_t2.nii.gz"
    if how == "a manifest":
        data, named = tmp_path / "m.csv", "m.csv: found no t2 in row 3; expected a path"
        rows = ["case,t1,t1ce,flair,t2,truth"]
        for folder in sorted(data_set.iterdir()):
            files = (folder / f"{folder.name}_{kind}.nii.gz" for kind in ("t1", "t1ce", "flair", "t2", "seg"))
            rows.append(",".join([folder.name, *(str(one) if one.is_file() else "" for one in files)]))
        data.write_text("\n".join(rows))
    words = [str(data), "--labels", "brats2020", "--resolution", "16", "--workers", "1"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "--skip-bad" in error
    options = BratsConfig(data=data, labels="brats2020", resolution=16)
    (tmp_path / "run").mkdir()
    with pytest.raises(DataError, match="no t2"):
        material.prepare(options, tmp_path / "run", False, World(), lambda *_: None)
    assert main([*words, "--skip-bad"]) == 0
    assert "skipped: 1 case" in capsys.readouterr().out
    made = material.prepare(options, tmp_path / "run", False, World(), lambda *_: None)
    assert len(made.cache.ids) == 4
    assert "BraTS20_Training_002" not in {*made.split.training, *made.split.validation}
    assert "note: 1 case is left out" in capsys.readouterr().out
    (tmp_path / "finer").mkdir()
    finer = material.prepare(
        replace(options, resolution=32), tmp_path / "finer", False, World(), lambda *_: None
    )  # was not prepared itself
    assert finer.cache.ids == made.cache.ids
    assert "found no t2" in str(finer.cache.skipped.values())


@pytest.mark.parametrize("kind", ["brats", "segmentation"])
@pytest.mark.parametrize("before", ["nothing", "a prediction"])
def test_a_case_without_a_label_map_is_left_out_and_training_works_without_it(
    data_set, tmp_path, capsys, monkeypatch, kind, before
):
    """Also if its image has been predicted, and so is in the cache already."""
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "c"))
    if kind == "brats":
        data, case, of_task, grid = data_set, "BraTS20_Training_002", material, cube(16)
        (data / case / f"{case}_seg.nii.gz").unlink()
        found = layouts.find_cases(data, require_truth=False)
        options = BratsConfig(data=data, resolution=16)
    else:
        data, case, of_task, grid = write_nnunet(tmp_path / "Dataset007_X"), "case_1", organs, Grid(shape=(16, 16, 16))
        (data / "labelsTr" / f"{case}.nii.gz").unlink()
        found = organ_layouts.find(data, require_truth=False).data_set
        options = SegmentationConfig(data=data, resolution=16)
    if before == "a prediction":
        assert case in cache.build(found.cases, found.schema, grid, workers=1).ids
    (tmp_path / "run").mkdir()
    with pytest.raises(DataError, match=rf"found no label map of case {case} \(1 of .*--skip-bad"):
        of_task.prepare(options, tmp_path / "run", False, World(), lambda *_: None)
    assert main([str(data), "--resolution", "16", "--workers", "1", "--skip-bad"]) == 0
    told = capsys.readouterr().out
    assert f"cannot be used: {data}" in told
    assert "skipped: 1 case" in told
    made = of_task.prepare(options, tmp_path / "run", False, World(), lambda *_: None)
    assert case not in {*made.split.training, *made.split.validation}
    assert len(made.cache.ids) == len(found.cases) - 1
    assert f"note: 1 case is left out, as data.prepare was asked to: {case}" in capsys.readouterr().out


def test_without_the_extra_for_images_it_says_what_to_install():
    code = (
        "import runpy, sys; sys.modules['nibabel'] = None; sys.argv = ['prepare', 'data']; "
        "runpy.run_module('lms3d.data.prepare', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "data.prepare: error: the package nibabel is not installed; expected those of the extra"
    )
    assert done.stderr.count("\n") == 1


def test_interrupted(data_set, tmp_path, capsys, monkeypatch):
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "build", interrupt)
    assert main([str(data_set), "--resolution", "16"]) == 130
    assert "run again to go on" in capsys.readouterr().err


def test_a_disk_that_fails_where_nobody_looks_is_one_line(data_set, capsys, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error", "/disk/cubes.lock")

    monkeypatch.setattr("lms3d.data.preparation.cache.build", fail)
    assert main([str(data_set), "--workers", "1"]) == 2
    assert "error: /disk/cubes.lock: found Input/output error; expected a disk that works" in capsys.readouterr().err


def test_a_folder_that_nobody_may_enter_is_one_line(data_set, capsys, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for name in ("stat", "scandir"):  # what root may do, too
        monkeypatch.setattr(os, name, refuse)
    assert main([str(data_set)]) == 2
    assert capsys.readouterr().err == (
        f"data.prepare: error: {data_set}: found Permission denied; expected a readable folder; ask its owner to let you in, or "
        "name another\n"
    )


def test_a_defect_keeps_its_traceback(data_set, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("lms3d.data.preparation.cache.build", fail)
    with pytest.raises(OSError, match="Bad file"):
        main([str(data_set), "--workers", "1"])


def test_nobody_reads_what_it_prints(data_set, tmp_path):
    """As with `| true`. The cache is built nevertheless."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [str(data_set), "--resolution", "16", "--workers", "1", "--cache", str(tmp_path / "c")]
    command = [sys.executable, "-m", "lms3d.data.prepare", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("data.prepare: stdout: Broken pipe; going on without it") == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert list((tmp_path / "c/cubes").glob("*/index.json"))


def test_names_that_are_no_utf8(tmp_path, capsys):
    for number in (1, 2):
        write_case(tmp_path / "set" / f"BraTS20_Training_\udce9{number}", random_case(number))
    spoilt = next((tmp_path / "set").rglob("*1_t2.nii.gz"))
    spoilt.write_bytes(spoilt.read_bytes()[:-50])
    words = [
        str(tmp_path / "set"),
        "--resolution",
        "16",
        "--workers",
        "1",
        "--cache",
        str(tmp_path / "c"),
        "--skip-bad",
    ]
    assert main(words) == 0
    assert "BraTS20_Training_\\udce91" in capsys.readouterr().out
    (table,) = (tmp_path / "c").rglob("skipped.csv")
    assert "\nBraTS20_Training_\\udce91," in table.read_text(encoding="utf-8")


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "Check a data set and build its training cache" in capsys.readouterr().out


def test_a_raw_folder_of_nnunet_is_prepared_as_it_is(tmp_path, capsys, monkeypatch):
    root, asked = write_nnunet(tmp_path / "Dataset007_X"), []

    def proposes(command, **_):
        asked.extend(command)
        return subprocess.CompletedProcess(command, 0, stdout="proposal: a box\n")

    monkeypatch.setattr(subprocess, "run", proposes)
    assert main([str(root), "--examine", "--cache", str(tmp_path / "caches"), "--workers", "1"]) == 0
    told = "".join(capsys.readouterr())
    assert "CT; labels liver, spleen" in told
    assert "voxels of 1 x 1 x 2 mm" in told
    assert "look at" not in told, "a CT has no background of 0"
    assert "proposal: a box" in told
    assert asked[1:] == ["-m", "lms3d.tasks.segmentation.proposal", str(root)]
    asked = ["--cache", str(tmp_path / "caches"), "--workers", "1"]
    for grid in (["--spacing", "2x2x2"], ["--box", "32x16x16"], ["--resolution", "16"]):
        assert main([str(root), *grid, *asked]) == 0
    names = sorted(path.name.split("-", 4)[-1] for path in (tmp_path / "caches" / "cubes").glob("*/"))
    assert len(names) == 3
    assert main([str(root), "--spacing", "2x2", *asked]) == 2
    assert main([str(root), "--spacing", "infx1x1", *asked]) == 2
    assert main([str(root), "--n4", *asked]) == 2
    assert "--spacing: found '2x2'; expected three sizes in mm" in "".join(capsys.readouterr())


def test_a_case_with_the_name_of_a_file_of_the_cache_is_told_before_it_is_examined(tmp_path, capsys):
    root = write_nnunet(tmp_path / "Dataset007_X", cases=1)
    for path in (root / "imagesTr" / "case_0_0000.nii.gz", root / "labelsTr" / "case_0.nii.gz"):
        path.rename(path.with_name(path.name.replace("case_0", "index.json")))
    assert main([str(root), "--examine", "--cache", str(tmp_path / "caches"), "--workers", "1"]) == 2
    assert "found a case called index.json, as a file of the cache is" in capsys.readouterr().err
    assert not (tmp_path / "caches").exists()
