"""`--anonymous` in the commands that apply and score: no name in their output, and none in tables, pages and figures."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
from matplotlib.text import Text

from lms3d import evaluate, models, package, predict
from lms3d.data import pseudonyms, split
from lms3d.data.brats import layouts
from lms3d.data.brats.preprocess import cube
from lms3d.data.volumes import cache, normalise
from lms3d.device import startup
from lms3d.tasks.brats import task as brats
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.volumes import figures
from lms3d.tasks.volumes.label_maps import write_like

# No name, nor part of one, so short that the compressed bytes of a picture spell it by chance.
NAMES = ("Mueller_Johannes_1957", "Dr. O'Flaherty, Patricia", "Nakamura77", "Zoe Lindqvist")
PARTS = (*NAMES, "Mueller", "Johannes", "Flaherty", "Patricia", "Nakamura", "Lindqvist")
FOR_PROGRAMS = ("predictions.json", "split.json")
RESOLUTION = 16


@pytest.fixture
def patients(tiny_brats, tmp_path) -> Path:
    """Cases with telling names."""
    for folder, name in zip(sorted(tiny_brats.iterdir()), NAMES, strict=True):
        for path in folder.iterdir():
            target = tmp_path / "set" / name / path.name.replace(folder.name, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return tmp_path / "set"


@pytest.fixture
def run_dir(patients, capsys, names_hidden_here, tmp_path, monkeypatch) -> Path:
    """As training leaves it. TensorFlow runs already in this process."""
    monkeypatch.setattr(startup, "start_tensorflow", lambda **_: None)
    directory = tmp_path / "run"
    directory.mkdir()
    cases, schema = layouts.find_cases(patients, labels="brats2020")
    built = cache.build(cases, schema, cube(RESOLUTION, anti_alias=True), workers=1)
    split.save(split.Split(training=NAMES[:2], validation=NAMES[2:]), directory / "split.json")
    options = BratsConfig(data=patients, labels="brats2020", resolution=RESOLUTION, model="unet3d", lms=False)
    content = {"options": options.to_json(), "normalisation": normalise.fit("case", built, NAMES[:2]).to_json()}
    (directory / "config.json").write_text(json.dumps(content))
    models.build("unet3d", input_shape=(RESOLUTION,) * 3 + (4,), filters=(2, 4, 4)).save(directory / "best.keras")
    return directory


def names_in(text: str | bytes) -> list[str]:
    return [name for name in PARTS if (name.encode() if isinstance(text, bytes) else name) in text]


def drawn(monkeypatch) -> list[str]:
    """What figures say from now on."""
    said: list[str] = []
    set_text = Text.set_text
    monkeypatch.setattr(Text, "set_text", lambda self, s: said.append(str(s)) or set_text(self, s))
    return said


def test_predict_evaluate_and_package(run_dir, patients, capsys, monkeypatch):
    said = drawn(monkeypatch)
    assert predict.main([str(run_dir), "--data", str(patients), "--anonymous"]) == 0
    assert evaluate.main([str(run_dir), "--anonymous"]) == 0
    assert package.main([str(run_dir), "--anonymous"]) == 0
    told = "".join(capsys.readouterr())
    assert "such as case-" in told  # two of the four have trained the network
    assert not names_in(told)
    assert not names_in("\n".join(said))
    assert any("case-" in text for text in said), "the worst cases have titles"
    written = [path for path in run_dir.rglob("*") if path.is_file() and path.name not in FOR_PROGRAMS]
    assert not [(path, found) for path in written if (found := names_in(path.read_bytes()))]
    table = (run_dir / "predictions/evaluation/scores.csv").read_text()
    assert all(pseudonyms.of(name) in table for name in NAMES)
    assert pseudonyms.of("Zoe Lindqvist") in (run_dir / "predictions/evaluation/report.html").read_text()
    assert {path.name for path in (run_dir / "predictions/native").iterdir()} == {f"{name}.nii.gz" for name in NAMES}


def test_without_it_tables_have_names(run_dir, capsys):
    assert predict.main([str(run_dir)]) == evaluate.main([str(run_dir)]) == 0
    assert "Zoe Lindqvist" in (run_dir / "predictions/evaluation/scores.csv").read_text()


@pytest.mark.parametrize("wrong", ["an unknown case", "a missing prediction", "a foreign file", "two files"])
def test_what_is_wrong_is_told_without_names(run_dir, patients, tmp_path, capsys, wrong):
    others = tmp_path / "others"
    asked = ["--truth", str(patients), "--labels", "brats2020"]
    if wrong == "an unknown case":
        (tmp_path / "some.txt").write_text("Mueller_Karl\n")
        done = predict.main(
            [str(run_dir), "--data", str(patients), "--cases", str(tmp_path / "some.txt"), "--anonymous"]
        )
    elif wrong == "a missing prediction":
        assert predict.main([str(run_dir), "--anonymous"]) == 0
        (run_dir / "predictions/native/Zoe Lindqvist.nii.gz").unlink()
        done = evaluate.main([str(run_dir), "--anonymous"])
    elif wrong == "a foreign file":
        shutil.copytree(patients / "Zoe Lindqvist", others / "Nakamura_x")
        for path in (others / "Nakamura_x").iterdir():
            path.rename(path.with_name(f"Mueller_Karl{len(path.name)}.nii.gz"))
        done = evaluate.main([str(others), *asked, "--anonymous"])
    else:
        shutil.copytree(patients / "Zoe Lindqvist", others / "Zoe Lindqvist")
        done = evaluate.main([str(others), *asked, "--anonymous"])
    told = "".join(capsys.readouterr())
    assert done == 2
    assert "found" in told
    assert not names_in(told), told


def test_the_figure_of_a_training(run_dir, monkeypatch, names_hidden_here):
    from lms3d.scoring.figures import slices

    pseudonyms.start()
    titles = []
    monkeypatch.setattr(slices, "slice_with_outlines", lambda *_, title, shown: titles.append(title))
    monkeypatch.setattr(figures, "_segmented", lambda *_: np.zeros((4, 4, 4)))
    volumes = SimpleNamespace(image=lambda _: np.zeros((4, 4, 4, 4)), truth=lambda _: np.zeros((4, 4, 4)),
                              schema=SimpleNamespace(regions={}))  # fmt: skip
    material = SimpleNamespace(cache=volumes, split=split.Split(training=("a",), validation=("Zoe Lindqvist",)))
    brats.TASK.finish(run_dir, SimpleNamespace(data=run_dir), None, material, None)
    assert titles == [f"{pseudonyms.of('Zoe Lindqvist')} (validation)"]


def test_what_they_write_is_for_the_user_alone(run_dir, patients, capsys):
    for path in (run_dir, *run_dir.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)  # earlier files stay
    before = {run_dir, *run_dir.iterdir()}
    assert predict.main([str(run_dir)]) == evaluate.main([str(run_dir)]) == package.main([str(run_dir)]) == 0
    made = set(run_dir.rglob("*")) - before
    assert len(made) > 10
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_prediction_takes_no_text_over_from_a_scan(tmp_path):
    image = nib.Nifti1Image(np.ones((4, 5, 6), np.int16), np.eye(4))
    image.header["descrip"], image.header["db_name"], image.header["aux_file"] = b"Mueller", b"Johannes", b"Lindqvist"
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"Nakamura"))
    nib.save(image, tmp_path / "scan.nii")
    write_like(np.zeros((4, 5, 6)), tmp_path / "scan.nii", tmp_path / "labels.nii")
    assert not names_in((tmp_path / "labels.nii").read_bytes())
