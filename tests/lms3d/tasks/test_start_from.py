"""`--start-from` between data sets whose labels have other names: said, and not refused. Patients that it has seen: refused."""

import json
import shutil

import pytest

import models
from data import split
from data.brats import cache, definition, layouts
from data.brats.preprocess import cube
from data.brats.schema import SCHEMAS
from lms3d.config import TrainConfig
from lms3d.errors import InputError
from lms3d.tasks.brats import material, task
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


def test_other_modalities_are_told(tmp_path, capsys):
    begun(tmp_path, "brats2020")
    options = TrainConfig(labels="brats2020", start_from=tmp_path, **SMALL)
    network = models.build("unet3d", input_shape=(16, 16, 16, 4), outputs=3)
    task._start_from(network, options, SCHEMAS["brats2020"].learnt, ("t1", "t1ce", "flair", "t2"))
    assert capsys.readouterr().out == ""
    task._start_from(network, options, SCHEMAS["brats2020"].learnt, ("t1", "t1ce", "flair"))
    assert "it learnt from t1, t1ce, flair, t2; here are t1, t1ce, flair" in capsys.readouterr().out


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


OLD, NEW = "BraTS19_TMC_06290_1", "BraTS20_Training_001"
TABLE = f"BraTS_2019_subject_ID,BraTS_2020_subject_ID\n{OLD},{NEW}\n"


def begin(run, data, earlier=None):
    """A run whose first case trains. What it says where it must not begin."""
    found = layouts.find_cases(data)
    volumes = cache.build(found.cases, found.schema, cube(16), workers=1)
    run.mkdir()
    given = run / "given.json"
    ids = [case.id for case in found.cases]
    split.save(split.Split(training=tuple(ids[1:]), validation=tuple(ids[:1])), given)
    options = TrainConfig(data=data, split=given, start_from=earlier, **SMALL)
    return material._split(options, run, False, found, volumes)


@pytest.mark.parametrize("told", ["by the old set's table", "by the new set's table", "by the image"])
def test_a_patient_with_another_name_in_another_year_must_not_validate(tmp_path, told, own_cache):
    """The network has learnt from 2019; the same brain has another id in 2020, and comes first there: it would validate."""
    for number, name in enumerate(("BraTS19_AAA_1_1", OLD)):
        write_case(tmp_path / "2019" / name, random_case(number))
    for number, name in enumerate((NEW, "BraTS20_Training_002"), start=10):
        write_case(tmp_path / "2020" / name, random_case(number))
    if told == "by the image":
        shutil.copy(tmp_path / f"2019/{OLD}/{OLD}_t1.nii.gz", tmp_path / f"2020/{NEW}/{NEW}_t1.nii.gz")
    else:
        (tmp_path / ("2019" if "old" in told else "2020") / "name_mapping.csv").write_text(TABLE)
    begin(tmp_path / "first", tmp_path / "2019")
    with pytest.raises(InputError, match=f"have seen {NEW}, or another scan of this patient"):
        begin(tmp_path / "second", tmp_path / "2020", tmp_path / "first")


def test_a_chain_of_runs_hands_on_whom_it_has_seen(tmp_path, own_cache):
    for year, names in (
        ("a", ("BraTS19_AAA_1_1", OLD)),
        ("b", ("BraTS19_BBB_1_1", "BraTS19_CCC_1_1")),
        ("c", (OLD, "BraTS19_ZZZ_1_1")),
    ):
        for number, name in enumerate(names):
            write_case(tmp_path / year / name, random_case(10 * ord(year) + number))
    begin(tmp_path / "first", tmp_path / "a")
    begin(tmp_path / "second", tmp_path / "b", tmp_path / "first")
    with pytest.raises(InputError, match=f"have seen {OLD}"):
        begin(tmp_path / "third", tmp_path / "c", tmp_path / "second")


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
