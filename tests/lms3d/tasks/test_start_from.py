"""`--start-from` and `--weights` between data sets whose labels have other names: said, and not refused. Patients that these
weights have seen: refused."""

import json
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from lms3d import models
from lms3d.data import split
from lms3d.data.brats import definition, layouts
from lms3d.data.brats.preprocess import cube
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.volumes import cache
from lms3d.errors import InputError
from lms3d.tasks.brats import task
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.brats.task import TASK
from lms3d.tasks.packages import archive, package
from lms3d.tasks.segmentation.options import SegmentationConfig
from lms3d.tasks.volumes import material, starting
from tests.data.small_data import LATE, random_case, write_case

SMALL = {"resolution": 16, "model": "unet3d", "targets": "labels"}


def begun(tmp_path, labels: str) -> None:
    """The folder of a run on such labels."""
    content = {
        "options": BratsConfig(labels=labels, **SMALL).to_json(),
        "labels": definition.described(SCHEMAS[labels]),
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    outputs = len(SCHEMAS[labels].learnt)
    models.build("unet3d", input_shape=(16, 16, 16, 4), outputs=outputs).save(tmp_path / "best.keras")


def test_other_names_are_told(tmp_path, capsys):
    begun(tmp_path, "brats2020")
    TASK.network(BratsConfig(labels="brats2023", start_from=tmp_path, **SMALL), None)
    assert "what it learnt as NCR, ED, ET is NETC, SNFH, ET here" in capsys.readouterr().out


def test_weights_of_another_network_are_refused(tmp_path):
    """Some would fit by chance."""
    begun(tmp_path, "brats2020")
    options = SegmentationConfig(start_from=tmp_path, model="resenc")
    with pytest.raises(InputError, match="found weights of unet3d; expected those of resenc; add --model unet3d"):
        starting.start(other(), options)


def other(**more):
    """A network for another number of channels and labels than `begun` has."""
    return models.build("unet3d", input_shape=(16, 16, 16, 2), outputs=6, activation="softmax", **more)


@pytest.mark.parametrize("packaged", [False, True])
def test_what_fits_another_number_of_channels_and_labels_is_kept(tmp_path, capsys, packaged):
    begun(tmp_path, "brats2020")
    earlier = {v.path: v.numpy() for v in keras.models.load_model(tmp_path / "best.keras").weights}
    path = tmp_path
    if packaged:
        content = json.loads((tmp_path / "config.json").read_text())
        content["normalisation"] = {"kind": "case", "inside_brain": True}
        (tmp_path / "config.json").write_text(json.dumps(content))
        path = tmp_path / "p.lms3d"
        archive.write(package.make(tmp_path), path)
    network = other()
    starting.take_fitting(network, path)
    says = capsys.readouterr().out
    assert "71 weights fit, 100.0 % of all numbers" in says
    assert "3 start anew: encoder0_a_conv/kernel, head_conv/kernel, head_conv/bias" in says
    kept = {
        v.path: np.array_equal(v.numpy(), earlier[v.path]) for v in network.weights if v.shape == earlier[v.path].shape
    }
    assert all(kept.values())


def test_a_network_of_other_names_is_refused(tmp_path):
    models.build("resenc", input_shape=(16, 16, 16, 4), filters=(2, 2), blocks=(1, 1)).save(tmp_path / "best.keras")
    with pytest.raises(InputError, match="found no weight that fits unet3d, such as encoder0_a_conv/kernel"):
        starting.take_fitting(other(filters=(3, 3)), tmp_path)


def test_other_modalities_are_told(tmp_path, capsys):
    begun(tmp_path, "brats2020")
    options = BratsConfig(labels="brats2020", start_from=tmp_path, **SMALL)
    network = models.build("unet3d", input_shape=(16, 16, 16, 4), outputs=3)
    task._start_from(network, options, SCHEMAS["brats2020"].learnt, ("t1", "t1ce", "flair", "t2"))
    assert capsys.readouterr().out == ""
    task._start_from(network, options, SCHEMAS["brats2020"].learnt, ("t1", "t1ce", "flair"))
    assert "it learnt from t1, t1ce, flair, t2; here are t1, t1ce, flair" in capsys.readouterr().out


def test_the_same_names_are_not(tmp_path, capsys):
    begun(tmp_path, "brats2020")
    TASK.network(BratsConfig(labels="brats2021", start_from=tmp_path, **SMALL), None)
    assert capsys.readouterr().out == ""


def test_another_visit_of_a_patient_whom_the_weights_have_seen_must_not_validate(tmp_path):
    visits = [f"BraTS-GLI-{patient:05d}-001" for patient in range(3)]
    for number, visit in enumerate(visits):
        write_case(tmp_path / "now" / visit, random_case(number, labels=(1, 2, 3)), LATE)
    begun = split.Split(training=("BraTS-GLI-00001-000",), validation=("BraTS-GLI-00002-000",))
    (tmp_path / "run").mkdir()
    split.save(begun, tmp_path / "run" / "split.json")
    given = split.Split(training=tuple(visits[:1]), validation=tuple(visits[1:]))
    start = material._start(BratsConfig(start_from=tmp_path / "run", **SMALL))
    found = layouts.find_cases(tmp_path / "now")
    with pytest.raises(
        InputError, match=r"have seen BraTS-GLI-00001-001, or another scan of this patient \(1 case in all\)"
    ):
        material._require_unseen(start, given, found)
    material._require_unseen(start, split.Split(training=given.validation, validation=given.training), found)


OLD, NEW = "BraTS19_TMC_06290_1", "BraTS20_Training_001"
TABLE = f"BraTS_2019_subject_ID,BraTS_2020_subject_ID\n{OLD},{NEW}\n"


def begin(run, data, earlier=None, *, how="start_from"):
    """A run whose first case validates. What it says where it must not begin. how: it is given the run `earlier`."""
    found = layouts.find_cases(data)
    volumes = cache.build(found.cases, found.schema, cube(16), workers=1)
    run.mkdir()
    given = run / "given.json"
    ids = [case.id for case in found.cases]
    split.save(split.Split(training=tuple(ids[1:]), validation=tuple(ids[:1])), given)
    origin = {how: earlier if how == "start_from" or earlier is None else earlier / "best.keras"}
    options = BratsConfig(data=data, split=given, **origin, **SMALL)
    return material.divided(options, run, False, found, volumes)


@pytest.mark.parametrize("how", ["start_from", "weights"])
@pytest.mark.parametrize("told", ["by the old set's table", "by the new set's table", "by the image"])
def test_a_patient_with_another_name_in_another_year_must_not_validate(tmp_path, told, how, own_cache):
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
        begin(tmp_path / "second", tmp_path / "2020", tmp_path / "first", how=how)


@pytest.mark.parametrize("how", ["start_from", "weights"])
def test_a_chain_of_runs_hands_on_whom_it_has_seen(tmp_path, how, own_cache):
    for year, names in (
        ("a", ("BraTS19_AAA_1_1", OLD)),
        ("b", ("BraTS19_BBB_1_1", "BraTS19_CCC_1_1")),
        ("c", (OLD, "BraTS19_ZZZ_1_1")),
    ):
        for number, name in enumerate(names):
            write_case(tmp_path / year / name, random_case(10 * ord(year) + number))
    begin(tmp_path / "first", tmp_path / "a")
    begin(tmp_path / "second", tmp_path / "b", tmp_path / "first", how=how)
    with pytest.raises(InputError, match=f"have seen {OLD}"):
        begin(tmp_path / "third", tmp_path / "c", tmp_path / "second", how=how)


IDS = [f"case{number:02d}" for number in range(20)]


def division(tmp_path, **options) -> split.Split:
    """The split of a new run on the 20 cases of the run `tmp_path / "run"`, each a patient of its own."""
    (tmp_path / "new").mkdir(exist_ok=True)
    found = SimpleNamespace(patients={one: one for one in IDS}, known_as=dict.fromkeys(IDS, ()))
    volumes = SimpleNamespace(ids=tuple(IDS), skipped={})
    return material.divided(BratsConfig(seed=3, **options), tmp_path / "new", False, found, volumes)


@pytest.fixture
def earlier(tmp_path) -> split.Split:
    """The split of that run; four of its cases validate."""
    (tmp_path / "run/last").mkdir(parents=True)
    made = split.make(IDS, seed=0)
    split.save(made, tmp_path / "run/split.json")
    return made


@pytest.mark.parametrize("origin", [{"start_from": "run"}, {"weights": "run/best.keras"},
                                    {"weights": "run/last/best.older.keras"}])  # fmt: skip
def test_on_the_same_cases_the_split_of_the_run_is_kept_or_another_refused(tmp_path, earlier, origin):
    origin = {name: tmp_path / place for name, place in origin.items()}
    kept = division(tmp_path, **origin)
    assert kept == earlier
    assert set(kept.seen_before) == set(earlier.training)
    (told,) = (f"--{name.replace('_', '-')} {path}" for name, path in origin.items())
    split.save(split.make(IDS, seed=3), tmp_path / "other.json")
    with pytest.raises(
        InputError, match=f"{told}: its weights have seen case..,.* add --split {tmp_path}/run/split.json"
    ):
        division(tmp_path, split=tmp_path / "other.json", **origin)


def test_a_share_that_the_kept_split_does_not_have_is_refused(tmp_path, earlier):
    start = {"start_from": tmp_path / "run"}
    with pytest.raises(
        InputError, match=r"--validation-fraction 0.5: --start-from .*4 patients validate there, not 10"
    ):
        division(tmp_path, validation_fraction=0.5, **start)
    assert division(tmp_path, validation_fraction=0.21, **start) == earlier  # as many
    split.save(split.make(IDS, seed=0, validation_fraction=0.5), tmp_path / "run/split.json")
    assert len(division(tmp_path, validation_fraction=0.5, **start).validation) == 10  # as a stage and the next
    split.save(split.Split(training=("x", "y"), validation=("z",)), tmp_path / "run/split.json")
    assert len(division(tmp_path, validation_fraction=0.5, **start).validation) == 10  # of other cases


def test_weights_of_which_nobody_knows_whom_they_have_seen(tmp_path, earlier, capsys):
    (tmp_path / "run/split.json").unlink()
    with pytest.raises(
        InputError, match=r"--start-from .*/run: found no split.json there.*--weights .*/run/best.keras"
    ):
        division(tmp_path, start_from=tmp_path / "run")
    assert capsys.readouterr().out == ""
    assert division(tmp_path, weights=tmp_path / "run/best.keras").seen_before == ()
    told = capsys.readouterr().out
    assert f"note: --weights {tmp_path}/run/best.keras: no split.json of a run lies there" in told
    assert told.count("\n") == 1


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
        TASK.network(BratsConfig(labels="brats2020", **{how: given}, **SMALL), None)
    assert "\n" not in str(error.value)
