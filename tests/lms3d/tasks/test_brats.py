from dataclasses import replace
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest

from lms3d.data import split
from lms3d.data.brats.definition import define
from lms3d.errors import DoesNotFit, InputError
from lms3d.ranks.world import World
from lms3d.tasks import chosen
from lms3d.tasks.brats import material, task
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.volumes import figures, predict
from lms3d.tasks.volumes.material import divided
from lms3d.training.session import Training
from tests.data.small_data import random_case, save, write_case


def test_a_finished_run_does_not_fail_over_a_picture(tmp_path, monkeypatch, capsys):
    def no_room(*_):
        raise DoesNotFit("inference at 32^3 needs more memory than there is; raise --memory-limit")

    monkeypatch.setattr(figures, "_segmented", no_room)
    cache = SimpleNamespace(image=lambda case: np.zeros((2, 2, 2, 4)), truth=lambda case: np.zeros((2, 2, 2)))
    material = SimpleNamespace(cache=cache, split=SimpleNamespace(validation=["case"]))
    task.TASK.finish(tmp_path, BratsConfig(data=tmp_path), None, material, None)
    assert "slice.png is left out: inference at 32^3" in "".join(capsys.readouterr())


def test_a_training_says_what_trains_where_and_on_what():
    counts = SimpleNamespace(training_count=3, validation_count=1)
    options = BratsConfig(model="unet3d", resolution=32, batch_size=2, lms=True)
    training = Training(session=None, options=options, task=task.TASK, material=counts, world=World(), memory=None)
    told = training.headline(3 << 30)
    assert told.startswith("unet3d at 32^3, batch 2, with LMS in 3.00 GiB of ")
    assert told.endswith(": learns from 3 samples, validates on 1")


def test_a_region_of_what_is_not_learnt_is_no_metric_of_training():
    labels = {"NCR": 1, "ED": 2, "ET": 3, "RC": 4}
    regions = {"WT": ["NCR", "ED", "ET"], "ET": ["ET"], "RC": ["RC"]}
    schema = define({"labels": labels, "regions": regions, "learnt": ["NCR", "ED", "ET"]}, where="here")
    metrics = task.TASK.metrics(chosen({"labels": schema.name}), None)
    assert [metric.name for metric in metrics] == ["dice_WT", "dice_ET"]
    for metric in metrics:
        metric.update_state(np.zeros((1, 4, 4, 4, 3), np.float32), np.full((1, 4, 4, 4, 3), 0.5, np.float32))


def test_copies_of_a_brain_are_on_one_side_of_the_split(tmp_path, monkeypatch):
    """Also where their headers differ: what the network would see is the same."""
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))
    for number, seed in enumerate((0, 1, 2, 0, 1, 2)):
        folder = write_case(tmp_path / "set" / f"BraTS2021_0000{number}", random_case(seed))
        if number > 2:
            for path in folder.iterdir():
                save(np.asarray(nib.load(path).dataobj).astype(np.float32), path)
    options = BratsConfig(data=tmp_path / "set", resolution=16, model="unet3d", validation_fraction=0.34)
    for seed in range(3):
        run_dir = tmp_path / str(seed)
        run_dir.mkdir()
        made = material.prepare(replace(options, seed=seed), run_dir, False, World(), lambda *_: None)
        assert {int(case[-1]) % 3 for case in made.split.training}.isdisjoint(
            int(case[-1]) % 3 for case in made.split.validation
        )
        assert made.training_count + made.validation_count == 6


@pytest.mark.parametrize("line", ["{}", ' "{}",', "cases/{}.nii.gz", "{}_seg.nii.gz;", "{}\r"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_lists_of_cases_in_the_forms_people_have(tmp_path, line, encoding):
    volumes = SimpleNamespace(ids=("a", "b-1 x"), skipped={}, directory=tmp_path)
    (tmp_path / "list.txt").write_bytes("\n".join(["", *map(line.format, volumes.ids), ""]).encode(encoding))
    assert predict._named(tmp_path / "list.txt", volumes) == ["a", "b-1 x"]


def test_cases_that_were_left_out_may_stand_in_splits_and_lists(tmp_path, capsys):
    """Both may be older than data.prepare --skip-bad, or list the whole folder, as experiments.decisive_comparison does."""
    volumes = SimpleNamespace(ids=("a", "b", "c"), skipped={"bad": "a.nii.gz: found nothing"}, directory=tmp_path)
    split.save(split.Split(training=("a", "bad"), validation=("b",)), tmp_path / "given.json")
    options = BratsConfig(split=tmp_path / "given.json")
    made = divided(options, tmp_path, False, SimpleNamespace(patients={}, known_as={}), volumes)
    assert made == split.load(tmp_path / "split.json") == split.Split(training=("a",), validation=("b",))
    (tmp_path / "list.txt").write_text("c\nbad\n")
    assert predict._named(tmp_path / "list.txt", volumes) == ["c"]
    assert "note: 1 case of" in capsys.readouterr().out
    (tmp_path / "list.txt").write_text("c\nother\n")
    with pytest.raises(InputError, match="found case other, which is not in the data"):
        predict._named(tmp_path / "list.txt", volumes)
