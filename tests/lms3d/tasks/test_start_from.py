"""`--start-from` between data sets whose labels have other names: said, and not refused."""

import json

import models
from data.brats import definition
from data.brats.schema import SCHEMAS
from lms3d.config import TrainConfig
from lms3d.tasks.brats.task import TASK

SMALL = {"resolution": 16, "model": "unet3d", "targets": "labels"}


def begun(tmp_path, labels: str) -> None:
    """The folder of a run on such labels."""
    content = {
        "options": TrainConfig(labels=labels, **SMALL).to_json(),
        "labels": definition.described(SCHEMAS[labels]),
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    outputs = len(SCHEMAS[labels].learnt)
    models.build("unet3d", input_shape=(16, 16, 16, 4), outputs=outputs).save(tmp_path / "best.keras")


def test_other_names_are_told(tmp_path, capsys):
    begun(tmp_path, "brats2020")
    TASK.network(TrainConfig(labels="brats2023", start_from=tmp_path, **SMALL), None)
    assert "what it learnt as NCR, ED, ET is NETC, SNFH, ET here" in capsys.readouterr().out


def test_the_same_names_are_not(tmp_path, capsys):
    begun(tmp_path, "brats2020")
    TASK.network(TrainConfig(labels="brats2021", start_from=tmp_path, **SMALL), None)
    assert capsys.readouterr().out == ""
