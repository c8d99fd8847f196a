"""`--start-from` between data sets whose labels have other names: said, and not refused."""

import json

import pytest

import models
from data.brats import definition
from data.brats.schema import SCHEMAS
from lms3d.config import TrainConfig
from lms3d.errors import InputError
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


@pytest.mark.parametrize("how", ["start_from", "weights"])
@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-500], lambda content: b"[" * 9000,
                                    lambda content: content[:3000] + bytes(2000) + content[5000:]],
                         ids=["empty", "cut off", "text", "zeros within"])  # fmt: skip
def test_weights_that_are_damaged_are_refused_in_one_line(tmp_path, how, damage):
    begun(tmp_path, "brats2020")
    path = tmp_path / "best.keras"
    path.write_bytes(damage(path.read_bytes()))
    given = tmp_path if how == "start_from" else path
    with pytest.raises(
        InputError, match=rf"--{how.replace('_', '-')} {given}: cannot be used .*give best.keras"
    ) as error:
        TASK.network(TrainConfig(labels="brats2020", **{how: given}, **SMALL), None)
    assert "\n" not in str(error.value)
