"""`--start-from` between data sets whose labels have other names: said, and not refused. Patients that it has seen: refused."""

import json

import pytest

import models
from data import split
from data.brats import definition, layouts
from data.brats.schema import SCHEMAS
from lms3d.config import TrainConfig
from lms3d.errors import InputError
from lms3d.tasks.brats import material
from lms3d.tasks.brats.task import TASK
from tests.data.small_data import LATE, random_case, write_case

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


def test_another_visit_of_a_patient_whom_the_weights_have_seen_must_not_validate(tmp_path):
    visits = [f"BraTS-GLI-{patient:05d}-001" for patient in range(3)]
    for number, visit in enumerate(visits):
        write_case(tmp_path / "now" / visit, random_case(number, labels=(1, 2, 3)), LATE)
    begun = split.Split(training=("BraTS-GLI-00001-000",), validation=("BraTS-GLI-00002-000",))
    (tmp_path / "run").mkdir()
    split.save(begun, tmp_path / "run" / "split.json")
    given = split.Split(training=tuple(visits[:1]), validation=tuple(visits[1:]))
    options = TrainConfig(start_from=tmp_path / "run", **SMALL)
    found = layouts.find_cases(tmp_path / "now")
    with pytest.raises(
        InputError, match=r"have seen BraTS-GLI-00001-001, or another scan of this patient \(1 cases in all\)"
    ):
        material._require_unseen(options, given, found)
    material._require_unseen(options, split.Split(training=given.validation, validation=given.training), found)


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
