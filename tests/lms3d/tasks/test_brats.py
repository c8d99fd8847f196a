from types import SimpleNamespace

import numpy as np
import pytest

from data import split
from data.brats.definition import define
from lms3d.config import TrainConfig
from lms3d.errors import DoesNotFit, InputError
from lms3d.tasks import chosen
from lms3d.tasks.brats import material, predict, task


def test_a_finished_run_does_not_fail_over_a_picture(tmp_path, monkeypatch, capsys):
    def no_room(*_):
        raise DoesNotFit("inference at 32^3 needs more memory than there is; raise --memory-limit")

    monkeypatch.setattr(task, "_segment", no_room)
    cache = SimpleNamespace(image=lambda case: np.zeros((2, 2, 2, 4)), truth=lambda case: np.zeros((2, 2, 2)))
    material = SimpleNamespace(cache=cache, split=SimpleNamespace(validation=["case"]))
    task.TASK.finish(tmp_path, None, None, material, None)
    assert "slice.png is left out: inference at 32^3" in "".join(capsys.readouterr())


def test_a_region_of_what_is_not_learnt_is_no_metric_of_training():
    labels = {"NCR": 1, "ED": 2, "ET": 3, "RC": 4}
    regions = {"WT": ["NCR", "ED", "ET"], "ET": ["ET"], "RC": ["RC"]}
    schema = define({"labels": labels, "regions": regions, "learnt": ["NCR", "ED", "ET"]}, where="here")
    metrics = task.TASK.metrics(chosen({"labels": schema.name}), None)
    assert [metric.name for metric in metrics] == ["dice_WT", "dice_ET"]
    for metric in metrics:
        metric.update_state(np.zeros((1, 4, 4, 4, 3), np.float32), np.full((1, 4, 4, 4, 3), 0.5, np.float32))


def test_cases_that_were_left_out_may_stand_in_splits_and_lists(tmp_path, capsys):
    """Both may be older than data.prepare --skip-bad, or of the folder: those of experiments.decisive_comparison are."""
    volumes = SimpleNamespace(ids=("a", "b", "c"), skipped={"bad": "a.nii.gz: found nothing"}, directory=tmp_path)
    split.save(split.Split(training=("a", "bad"), validation=("b",)), tmp_path / "given.json")
    options = TrainConfig(split=tmp_path / "given.json")
    made = material._split(options, tmp_path, False, SimpleNamespace(patients={}, known_as={}), volumes)
    assert made == split.load(tmp_path / "split.json") == split.Split(training=("a",), validation=("b",))
    (tmp_path / "list.txt").write_text("c\nbad\n")
    assert predict._named(tmp_path / "list.txt", volumes) == ["c"]
    assert "note: 1 cases of" in capsys.readouterr().out
    (tmp_path / "list.txt").write_text("c\nother\n")
    with pytest.raises(InputError, match="found case other, which is not in the data"):
        predict._named(tmp_path / "list.txt", volumes)
