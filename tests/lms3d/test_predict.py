"""A trained run applied to cases, with and without truth, through the command line."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import tensorflow as tf
from nibabel.affines import voxel_sizes
from scipy import ndimage

from lms3d import evaluate, models, package, predict
from lms3d.data import prepare, split
from lms3d.data.brats import layouts
from lms3d.data.brats.definition import described
from lms3d.data.brats.preprocess import cube
from lms3d.data.brats.schema import schema_named
from lms3d.data.volumes import cache, normalise
from lms3d.data.volumes.preprocess import to_native
from lms3d.data.volumes.targets import Labels, targets_of
from lms3d.device import startup
from lms3d.engine.tensorflow import functions
from lms3d.errors import DoesNotFit
from lms3d.ranks.world import World
from lms3d.scoring.columns import COLUMNS
from lms3d.tasks import inference
from lms3d.tasks.brats import material
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.streaming import nifti, volumes
from lms3d.tasks.streaming.components import without_small
from lms3d.tasks.streaming.volumes import Array
from lms3d.tasks.volumes import label_maps
from lms3d.tasks.volumes import predict as segmentation
from lms3d.training.run_lock import RunLock
from tests.data import dicom_series
from tests.lms3d.scoring.golden import pairs

VALIDATION = ("BraTS20_Training_002", "BraTS20_Training_004")
RESOLUTION = 16


@pytest.fixture
def run_dir(tiny_brats, own_cache, tmp_path, monkeypatch):
    """A run directory with random weights, as training leaves it. TensorFlow runs already in this process."""
    monkeypatch.setattr(startup, "start_tensorflow", lambda **_: None)
    directory = tmp_path / "runs" / "tiny"
    directory.mkdir(parents=True)
    cases, schema = layouts.find_cases(tiny_brats)
    built = cache.build(cases, schema, cube(RESOLUTION, anti_alias=True), workers=1)
    training = tuple(case.id for case in cases if case.id not in VALIDATION)
    split.save(split.Split(training=training, validation=VALIDATION), directory / "split.json")
    options = BratsConfig(data=tiny_brats, resolution=RESOLUTION, model="unet3d", lms=False)
    content = {"options": options.to_json(), "normalisation": normalise.fit("case", built, training).to_json()}
    (directory / "config.json").write_text(json.dumps(content))
    network().save(directory / "best.keras")
    return directory


def network():
    import keras

    keras.utils.set_random_seed(0)
    return models.build("unet3d", input_shape=(RESOLUTION,) * 3 + (4,), filters=(2, 4, 4))


def labels(path):
    image = nib.load(path)
    return np.asarray(image.dataobj), image.affine


def test_validation_cases_are_segmented_in_native_and_cube_space(run_dir, tiny_brats):
    assert predict.main([str(run_dir)]) == 0
    index = json.loads((run_dir / "predictions/predictions.json").read_text())
    assert tuple(index["cases"]) == VALIDATION
    assert (index["label"], index["shape"], index["schema"], index["tta"]) == ("tiny", [16, 16, 16], "brats2020", None)
    cases, schema = layouts.find_cases(tiny_brats)
    built = cache.build(cases, schema, cube(RESOLUTION, anti_alias=True))
    fitted = normalise.from_json(json.loads((run_dir / "config.json").read_text())["normalisation"])
    for case_id in VALIDATION:
        native, affine = labels(run_dir / f"predictions/native/{case_id}.nii.gz")
        original = nib.load(tiny_brats / case_id / f"{case_id}_t1.nii.gz")
        assert (native.shape, native.dtype) == (original.shape, np.int16)
        np.testing.assert_array_equal(affine, original.affine)
        probabilities = network()(normalise.image(fitted, built, case_id)[None], training=False).numpy()[0]
        expected = Labels(schema).from_channels(to_native(probabilities, built.geometry(case_id)))
        assert (native == expected).mean() > 0.999
        assert (
            labels(run_dir / f"predictions/cube/{case_id}.nii.gz")[0] == Labels(schema).from_channels(probabilities)
        ).all()
    assert evaluate.main([str(run_dir)]) == 0


@pytest.mark.parametrize("kind", ["labels", "regions"])
def test_a_network_that_gives_back_what_it_was_taught_scores_its_ceiling(run_dir, tmp_path, kind, monkeypatch):
    """In every column, on both grids: the ceiling goes the way of predictions."""
    content = json.loads((run_dir / "config.json").read_text())
    content["options"]["targets"] = kind
    (run_dir / "config.json").write_text(json.dumps(content))

    def perfect(member, *_):
        learnt = targets_of(kind, member.volumes.schema)
        return lambda case_id: nullcontext(Array(learnt.to_channels(member.volumes.truth(case_id)).astype(np.float32)))

    monkeypatch.setattr(segmentation, "_segmenter", perfect)
    assert predict.main([str(run_dir)]) == 0
    assert evaluate.main([str(run_dir), "--scoring", "brats2023", "--output", str(tmp_path / "out")]) == 0
    with open(tmp_path / "out/scores.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert {(row["space"], row["region"]) for row in found} == set(
        itertools.product(("native", "cube"), ("WT", "TC", "ET"))
    )
    columns = [name for name in COLUMNS.names if name != "truth_ml"]
    for row in found:
        assert [row[f"ceiling_{name}"] for name in columns] == [row[name] for name in columns]
    native = [row for row in found if row["space"] == "native"]
    assert all(float(row["dice"]) < 1 for row in native if row["both_empty"] == "0.000000")
    assert {row["ceiling_lesion_f1"] for row in native} - {""}


def test_small_parts_of_a_tumour_are_removed_on_the_grid_of_the_files_alone(run_dir, tmp_path, monkeypatch):
    def specks(member, *_):
        channels = np.zeros((16, 16, 16, 3), np.float32)
        channels[2:7, 2:7, 2:7, 0] = channels[12, 12, 10:, 1] = channels[14, 2, 14, 2] = 1
        return lambda case_id: nullcontext(Array(channels))

    monkeypatch.setattr(segmentation, "_segmenter", specks)
    monkeypatch.setattr(volumes, "_SLAB_BYTES", 1)  # plane by plane
    case = f"{VALIDATION[0]}.nii.gz"
    for name, option in (("all", []), ("large", ["--remove-below", "0.5"])):
        assert predict.main([str(run_dir), "--output", str(tmp_path / name), *option]) == 0
    every, affine = labels(tmp_path / "all/native" / case)
    parts, count = ndimage.label(every, np.ones((3, 3, 3)))
    least = 500 / abs(np.linalg.det(affine[:3, :3]))
    large = np.bincount(parts.ravel()) >= least
    assert 1 < np.count_nonzero(large) < count + 1  # with the background
    np.testing.assert_array_equal(labels(tmp_path / "large/native" / case)[0], np.where(large[parts], every, 0))
    cubes = [labels(tmp_path / name / "cube" / case)[0] for name in ("all", "large")]
    np.testing.assert_array_equal(*cubes)


@pytest.mark.parametrize("degrees", [(0, 0, 0), (10, 20, 30), (-120, 61, 7)])
def test_a_part_of_exactly_the_least_volume_stays_however_the_head_is_turned(degrees, tmp_path):
    """A header holds a rotation in float32: the voxels of 1 mm seem to be a little larger or smaller."""
    affine = np.eye(4)
    affine[:3, :3] = pairs.rotation(*degrees).astype(np.float32)
    assert {*voxel_sizes(affine)} != {1.0} or not any(degrees)
    channels = np.zeros((8, 8, 8, 3), np.float32)
    channels[1:4, 1:4, 1:4, 0] = channels[6, 6, 2:7, 2] = 1
    labels = Array(channels)
    for least, parts in ((0.027, 1), (0.0271, 0), (0.005, 2)):
        voxels = segmentation.least_voxels(least, affine)
        with without_small(labels, lambda p: p.max(-1), [[1]], voxels, tmp_path) as kept:
            assert ndimage.label(kept.read((0, 0, 0), kept.shape)[..., 0], np.ones((3, 3, 3)))[1] == parts


@pytest.mark.parametrize("voxels", [2007, 4001])
def test_no_last_bit_of_a_quotient_removes_a_part(voxels):
    assert segmentation.least_voxels(float(f"{voxels / 1000}"), np.eye(4)) == voxels


def test_the_command_works_under_a_memory_limit_(run_dir, commands):
    done = commands.run(["-m", "lms3d.predict", run_dir, "--memory-limit", "400MiB"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 cases segmented" in done.stdout


@pytest.mark.parametrize(
    ("stored", "expected"),
    [("u1", "u1"), ("i1", "u1"), ("<i2", "<i2"), (">i4", ">i4"), ("<i8", "<i8"), ("<f4", "u1"), ("<f8", "u1")],
)
def test_label_maps_have_the_integer_type_of_the_files(tmp_path, stored, expected):
    header = nib.Nifti1Header(endianness=stored[0] if stored[0] in "<>" else "<")
    header.set_data_dtype(stored)
    nib.save(nib.Nifti1Image(np.ones((3, 4, 5), stored), np.eye(4), header), tmp_path / "scan.nii.gz")
    labels = 200 + np.arange(60).reshape(3, 4, 5) % 5
    label_maps.write_like(labels, tmp_path / "scan.nii.gz", tmp_path / "labels.nii.gz")
    written = nib.load(tmp_path / "labels.nii.gz")
    assert written.get_data_dtype() == np.dtype(expected)
    np.testing.assert_array_equal(np.asarray(written.dataobj), labels)


def test_the_header_is_that_of_the_files(run_dir, tiny_brats, tmp_path, capsys):
    data = tmp_path / "set"
    shutil.copytree(tiny_brats, data)
    for path in data.rglob("*.nii.gz"):
        image = nib.load(path)
        image.set_qform(image.affine, 1)
        image.set_sform(image.affine, 4)
        nib.save(image, path)
    shutil.copy(path, path.with_name(f"Copy of {path.name}"))
    assert predict.main([str(run_dir), "--data", str(data), "--output", str(tmp_path / "out")]) == 0
    assert "note: 1 file belongs to no case, such as " in capsys.readouterr().out
    case = VALIDATION[0]
    found, like = nib.load(tmp_path / f"out/native/{case}.nii.gz"), nib.load(data / case / f"{case}_t1.nii.gz")
    for name in ("qform", "sform"):
        (matrix, code), (expected, expected_code) = (getattr(one, f"get_{name}")(coded=True) for one in (found, like))
        np.testing.assert_array_equal(matrix, expected)
        assert code == expected_code
    assert found.get_data_dtype() == like.get_data_dtype() == np.int16
    assert found.header.get_xyzt_units() == like.header.get_xyzt_units()


def test_a_scan_with_a_damaged_qform_beside_its_sform_is_predicted(run_dir, tiny_brats, tmp_path):
    case = VALIDATION[0]
    shutil.copytree(tiny_brats / case, tmp_path / "set" / case)
    scan = tmp_path / "set" / case / f"{case}_t1.nii.gz"
    image = nib.load(scan)
    image.set_sform(image.affine, 1)
    image.header["qform_code"], image.header["quatern_b"], image.header["quatern_c"] = 1, 2, 1
    scan.write_bytes(gzip.compress(image.to_bytes()))
    with pytest.raises(ValueError, match="should be positive"):
        nib.load(scan).get_qform(coded=True)
    assert predict.main([str(run_dir), "--data", str(tmp_path / "set"), "--output", str(tmp_path / "out")]) == 0
    found = nib.load(tmp_path / f"out/native/{case}.nii.gz")
    matrix, code = found.get_sform(coded=True)
    np.testing.assert_array_equal(matrix, image.affine)
    assert code == 1
    assert found.get_qform(coded=True) == (None, 0)
    assert found.get_qform().shape == (4, 4)  # for programs that do not ask for the code


@pytest.mark.parametrize(
    "module",
    [
        "lms3d.train",
        "lms3d.plan",
        "lms3d.predict",
        "lms3d.package",
        "lms3d.evaluate",
        "lms3d.experiments.compare_resolutions",
    ],
)
def test_help_waits_for_neither_tensorflow_nor_matplotlib(module):
    absent = "sys.modules['tensorflow'] = sys.modules['matplotlib'] = None"
    code = f"import sys; {absent}; import {module} as command; command.main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "exit codes:" in done.stdout


def test_a_network_of_other_modalities_is_refused(run_dir, tiny_brats, tmp_path, capsys):
    rows = ["case,t1,t1ce,flair,t2"]
    for case in layouts.find_cases(tiny_brats).cases[:1]:
        rows.append(",".join([case.id, *(str(case.images[name]) for name in ("t1", "t1ce", "flair")), ""]))
    (tmp_path / "three.csv").write_text("\n".join(rows))
    command = ["--data", str(tmp_path / "three.csv"), "--labels", "brats2020", "--output", str(tmp_path / "out")]
    assert predict.main([str(run_dir), *command]) == 2
    assert "three.csv: found t1, t1ce, flair; expected t1, t1ce, flair, t2 as tiny has" in capsys.readouterr().err
    content = json.loads((run_dir / "config.json").read_text())
    content["data"] = {"modalities": ["t1", "t1ce", "flair"]}
    (run_dir / "config.json").write_text(json.dumps(content))
    assert package.main([str(run_dir), "--output", str(tmp_path / "p.lms3d")]) == 0
    for run in (run_dir, tmp_path / "p.lms3d"):
        assert predict.main([str(run), *command]) == 0
        assert predict.main([str(run), "--data", str(tiny_brats), "--output", str(tmp_path / "no")]) == 2
        assert "found t1, t1ce, flair, t2; expected t1, t1ce, flair as" in capsys.readouterr().err


def test_brains_that_the_box_of_the_run_cuts_off_are_told(run_dir, tiny_brats, tmp_path, capsys):
    """In the words of training, once for runs with the same box."""
    content = json.loads((run_dir / "config.json").read_text())
    content["options"] |= {"box": [16, 16, 16]}
    (run_dir / "config.json").write_text(json.dumps(content))
    shutil.copytree(run_dir, tmp_path / "again")
    command = [str(run_dir), str(tmp_path / "again"), "--data", str(tiny_brats), "--output", str(tmp_path / "out")]
    (tmp_path / "some.txt").write_text(VALIDATION[0])
    assert predict.main([*command, "--cases", str(tmp_path / "some.txt")]) == 0
    told = "do not fit into --box, such as {}: what lies outside is lost"
    said = capsys.readouterr().out
    assert f"note: 1 of 1 cases {told.format(VALIDATION[0])}" in said
    assert said.count("--box") == 1
    run = tmp_path / "run"
    run.mkdir()
    options = BratsConfig(data=tiny_brats, box=(16, 16, 16), model="unet3d")
    material.prepare(options, run, False, World(), lambda *_: None)
    assert f"note: 4 of 4 cases {told.format('BraTS20_Training_001')}" in capsys.readouterr().out


def test_cases_without_truth_are_segmented(run_dir, tiny_brats, tmp_path, capsys):
    new = tmp_path / "new"
    shutil.copytree(tiny_brats / "BraTS20_Training_001", new / "BraTS20_Training_001")
    (new / "BraTS20_Training_001/BraTS20_Training_001_seg.nii.gz").unlink()
    assert predict.main([str(run_dir), "--data", str(new), "--output", str(tmp_path / "out")]) == 0
    assert labels(tmp_path / "out/native/BraTS20_Training_001.nii.gz")[0].shape == (26, 30, 22)
    assert evaluate.main([str(tmp_path / "out")]) == 2
    assert "no label map for any of 1 predicted cases" in capsys.readouterr().err
    assert evaluate.main([str(tmp_path / "out"), "--truth", str(tiny_brats)]) == 0


def test_a_patient_who_was_left_out_is_named(run_dir, tiny_brats, tmp_path, capsys):
    shutil.copytree(tiny_brats, tmp_path / "new")
    bad = next((tmp_path / "new").glob("*_003/*_t2.nii.gz"))
    bad.write_bytes(bad.read_bytes()[:-500])
    arguments = [str(run_dir), "--data", str(tmp_path / "new"), "--output", str(tmp_path / "out")]
    assert predict.main(arguments) == 2
    assert "or leave the case out (python -m lms3d.data.prepare DATA --skip-bad)" in capsys.readouterr().err
    assert prepare.main([str(tmp_path / "new"), "--resolution", "32", "--skip-bad", "--workers", "1"]) == 0
    capsys.readouterr()
    assert predict.main(arguments) == 0
    assert (
        "note: 1 case is left out, as data.prepare was asked to: BraTS20_Training_003; why" in capsys.readouterr().out
    )
    assert label_maps.load(tmp_path / "out").left_out == ["BraTS20_Training_003"]


def test_other_visits_of_patients_who_trained_are_told_of(tmp_path, capsys):
    split.save(
        split.Split(training=("BraTS-GLI-00001-000",), validation=("BraTS-GLI-00002-000",)), tmp_path / "split.json"
    )
    runs, target = (
        (SimpleNamespace(run_dir=tmp_path),),
        SimpleNamespace(cases=["BraTS-GLI-00001-001", "BraTS-GLI-00002-001"]),
    )
    segmentation._tell_of_seen(runs, target, {}, {})
    assert "note: 1 of 2 cases, or other scans of their patients" in capsys.readouterr().out
    segmentation._tell_of_seen(runs, SimpleNamespace(cases=target.cases[1:]), {}, {})
    assert capsys.readouterr().out == ""


def test_inference_without_lms_runs_under_the_options_of_lms(monkeypatch):
    """On a GPU the layout optimiser, for one, makes 3D convolutions several times as slow."""
    calls, execution = [], functions.execution
    monkeypatch.setattr(functions, "execution", lambda: (calls.append("called"), execution())[1])
    inference.predictor(network(), (16, 16, 16))(np.ones((16, 16, 16, 4), np.float32))
    assert calls == ["called"]


class OutOfMemoryAtFirst:
    """An LMS whose first rewrite runs out of memory."""

    storage_error = None

    def __init__(self) -> None:
        self.asked: list[int] = []

    def rewrite(self, function, *, failed):
        self.asked.append(failed)
        return function if failed else self._fail

    def _fail(self, image):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


def test_inference_that_runs_out_of_memory_is_planned_again_for_less():
    model, image, lms = network(), np.ones((16, 16, 16, 4), np.float32), OutOfMemoryAtFirst()
    found = inference.predictor(model, (16, 16, 16), lms=lms)(image)
    np.testing.assert_allclose(found, inference.predictor(model, (16, 16, 16))(image), rtol=1e-5)
    assert lms.asked == [0, 1]
    lms.rewrite = lambda function, *, failed: lms._fail
    with pytest.raises(DoesNotFit, match="needs more memory than there is; raise --memory-limit"):
        inference.predictor(model, (16, 16, 16), lms=lms)(image)


def test_no_second_prediction_into_the_folder_of_one_that_works(run_dir, capsys):
    (run_dir / "predictions").mkdir()
    with RunLock() as lock:
        assert lock.take(run_dir / "predictions")
        assert predict.main([str(run_dir)]) == 2
    assert "predictions is in use by process" in capsys.readouterr().err
    assert predict.main([str(run_dir)]) == 0
    assert {path.name for path in (run_dir / "predictions").iterdir()} == {"cube", "native", "predictions.json"}


def test_symmetries_without_a_mean_over_them_are_refused(run_dir, capsys):
    assert predict.main([str(run_dir), "--symmetries", "flips"]) == 2
    assert "--symmetries flips: without --tta" in capsys.readouterr().err


def test_an_unfinished_prediction_leaves_no_index(run_dir, monkeypatch):
    assert predict.main([str(run_dir)]) == 0
    monkeypatch.setattr(nifti, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert predict.main([str(run_dir)]) == 130
    assert not (run_dir / "predictions/predictions.json").exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda run: (run / "config.json").unlink(), "config.json"),
        (lambda run: (run / "config.json").write_text("{"), "config.json is damaged"),
        (lambda run: (run / "best.keras").unlink(), "best.keras: found nothing; expected the best weights"),
        (lambda run: (run / "best.keras").write_bytes(b"no"), "best.keras: found a model that cannot be loaded"),
        (lambda run: (run / "split.json").write_text("[]"), "split.json: found no lists of case ids"),
        (lambda run: (run / "predictions").write_text("a file"), "--output"),
    ],
)
def test_a_damaged_run_is_one_line_and_exit_code_2(run_dir, capsys, damage, says):
    damage(run_dir)
    assert predict.main([str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [(predict, [""]), (predict, ["{run}", "--data", ""]), (predict, ["{run}", "--output", ""]),
     (package, [""]), (package, ["{run}", "--output", ""])],
)  # fmt: skip
def test_a_variable_of_the_shell_that_was_not_set(tmp_path, capsys, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    assert command.main([word.format(run=tmp_path) for word in words]) == 2
    error = capsys.readouterr().err
    assert "an empty path; name a file or a folder" in error
    assert (error.count("\n"), list(tmp_path.iterdir())) == (1, [])


def test_a_missing_data_folder_is_exit_code_2(run_dir, capsys):
    assert predict.main([str(run_dir), "--data", str(run_dir / "nowhere")]) == 2
    assert "nowhere: found nothing; expected a folder" in capsys.readouterr().err


def test_dicom_series_are_segmented_as_their_nifti_files_are(run_dir, tiny_brats, tmp_path, capsys):
    case = VALIDATION[0]
    content = json.loads((run_dir / "config.json").read_text())
    (run_dir / "config.json").write_text(json.dumps(content | {"labels": described(schema_named("brats2020"))}))
    for number, channel in enumerate(("t1", "t1ce", "flair", "t2")):
        image = sitk.ReadImage(str(tiny_brats / case / f"{case}_{channel}.nii.gz"))
        dicom_series.write(image, tmp_path / "study" / case / channel, number)
    command = [str(run_dir), "--output", str(tmp_path / "out"), "--uncertainty"]
    has_highdicom = find_spec("highdicom") is not None
    more = ["--format", "dicom-seg"] if has_highdicom else []
    assert predict.main([*command, "--data", str(tmp_path / "study"), *more]) == 0
    found, affine = labels(tmp_path / f"out/native/{case}.nii.gz")
    assert predict.main([str(run_dir)]) == 0
    expected, at = labels(run_dir / f"predictions/native/{case}.nii.gz")
    np.testing.assert_allclose(affine, at, atol=1e-4)
    assert (found == expected).mean() > 0.999
    entropy, _ = labels(tmp_path / f"out/uncertainty/{case}.nii.gz")
    assert (entropy.dtype, entropy.shape) == (np.float32, expected.shape)
    assert 0 <= entropy.min() < entropy.max() <= 3 * np.log(2) + 1e-5
    assert predict.main([*command, "--format", "dicom-seg"]) == 2
    assert "--format dicom-seg: found " in capsys.readouterr().err
    if has_highdicom:
        from highdicom.seg import segread

        read = segread(tmp_path / f"out/dicom/{case}.dcm")
        assert [read.get_segment_description(n).segment_label for n in read.segment_numbers] == ["NCR", "ED", "ET"]
        counts = np.bincount(read.get_volume(combine_segments=True).array.ravel(), minlength=4)
        assert list(counts[1:]) == [(found == value).sum() for value in (1, 2, 4)]
