"""A trained run applied to radiographs, and its AUROC, through the command lines."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest

from lms3d import evaluate, models, package, predict
from lms3d.data.chest_xray import collection, png, shards
from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.chest_xray.pipeline import IMAGENET_MEAN, IMAGENET_STD
from lms3d.data.phantoms import chests as radiograph
from lms3d.device import startup
from lms3d.errors import InputError
from lms3d.ranks.world import World
from lms3d.tasks import chosen, task_of
from lms3d.tasks.chexnet import predict as predict_images
from lms3d.tasks.packages import package as packages
from lms3d.training import run_folder, session

SIDE = 32


@pytest.fixture(scope="module")
def chests(tmp_path_factory):
    return radiograph.write(tmp_path_factory.mktemp("chests"), images=40, size=48, workers=1)


def network():
    """Its 14 outputs see brightness, and left and right apart."""
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((SIDE, SIDE, 3))
    x = keras.layers.AveragePooling2D(16)(inputs)
    return keras.Model(inputs, keras.layers.Dense(14, activation="sigmoid")(keras.layers.Flatten()(x)))


@pytest.fixture
def run_dir(chests, own_cache, tmp_path, monkeypatch):
    """A run as training leaves it. TensorFlow runs already in this process."""
    monkeypatch.setattr(startup, "start_tensorflow", lambda **_: None)
    directory = tmp_path / "runs" / "chest"
    directory.mkdir(parents=True)
    options = chosen({"task": "chexnet", "data": chests, "resolution": SIDE, "lms": False})
    index = shards.build(collection.find_images(chests), SIDE, seed=options.seed, workers=1)
    content = {"options": options.to_json(), "data": {"fingerprint": index.fingerprint}}
    (directory / "config.json").write_text(json.dumps(content))
    network().save(directory / "best.keras")
    return directory


def rows(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def expected(path, flip=False):
    """Probabilities of an image file, computed apart."""
    grey = png.read_grey(path, SIDE)[:, :: -1 if flip else 1]
    image = (grey[..., None] / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    return network()(image[None].astype(np.float32)).numpy()[0]


def values(row):
    return [float(row[name]) for name in FINDINGS]


def test_the_test_images_of_the_run(run_dir, chests, capsys):
    assert predict.main([str(run_dir)]) == 0
    assert f"lms3d.evaluate {run_dir / 'predictions'}" in capsys.readouterr().out
    found = rows(run_dir / "predictions/predictions.csv")
    images = collection.find_images(chests).images
    assert {row["image"] for row in found} == set((chests / "test_list.txt").read_text().split())
    for row in found:
        image = images[row["image"]]
        assert (row["patient"], row["findings"]) == (image.patient, "|".join(image.findings) or "No Finding")
        np.testing.assert_allclose(values(row), expected(image.path), atol=2e-6)


def test_all_images_of_a_data_set_and_their_areas(run_dir, chests, tmp_path, capsys):
    from sklearn.metrics import roc_auc_score

    assert predict.main([str(run_dir), "--data", str(chests), "--output", str(tmp_path / "out")]) == 0
    assert evaluate.main([str(tmp_path / "out")]) == 0
    assert "| Effusion |" in capsys.readouterr().out
    found = rows(tmp_path / "out/predictions.csv")
    assert len(found) == 40
    areas = {row["name"]: row["auroc"] for row in rows(tmp_path / "out/evaluation/auroc.csv")}
    truth = ["Effusion" in row["findings"].split("|") for row in found]
    area = roc_auc_score(truth, [float(row["Effusion"]) for row in found])
    assert float(areas["Effusion"]) == pytest.approx(area, abs=1e-6)
    assert (tmp_path / "out/evaluation/roc.png").stat().st_size > 10_000


def test_a_folder_of_images_with_their_mirror_images_and_the_truth_elsewhere(run_dir, chests, tmp_path, capsys):
    images = list(collection.find_images(chests).images.values())[:6]
    (tmp_path / "new/below").mkdir(parents=True)
    for image in images:
        shutil.copy(image.path, tmp_path / "new")
    shutil.copy(images[0].path, tmp_path / "new/below")
    out = tmp_path / "out"
    assert predict.main([str(run_dir), "--data", str(tmp_path / "new"), "--output", str(out), "--tta"]) == 0
    found = {row["image"]: row for row in rows(out / "predictions.csv")}
    assert found.keys() == {image.name for image in images} | {f"below/{images[0].name}"}
    for image in images:
        assert (found[image.name]["patient"], found[image.name]["findings"]) == ("", "")
        mean = (expected(image.path) + expected(image.path, flip=True)) / 2
        np.testing.assert_allclose(values(found[image.name]), mean, atol=2e-6)
    assert evaluate.main([str(out)]) == 2
    assert "--truth" in capsys.readouterr().err
    assert evaluate.main([str(out / "predictions.csv"), "--truth", str(chests)]) == 0
    told = capsys.readouterr()
    assert "1 image is left out" in told.err
    assert "6 images" in told.out


def test_an_unfinished_prediction_leaves_no_table(run_dir, chests, tmp_path, capsys):
    (tmp_path / "new").mkdir()
    image = next(iter(collection.find_images(chests).images.values()))
    shutil.copy(image.path, tmp_path / "new/a.png")
    (tmp_path / "new/b.png").write_bytes(image.path.read_bytes()[:200])
    out = tmp_path / "out"
    assert predict.main([str(run_dir), "--data", str(tmp_path / "new"), "--output", str(out)]) == 2
    assert "b.png: found a file that cannot be read" in capsys.readouterr().err
    assert list(out.iterdir()) == []
    (out / "predictions.csv").write_text("of before")
    assert predict.main([str(run_dir), "--data", str(tmp_path / "new"), "--output", str(out)]) == 2
    assert (out / "predictions.csv").read_text() == "of before"


def test_names_that_are_no_utf8_come_back(tmp_path):
    one = predict_images.Image(name="a\udce9.png", patient="", findings=None, grey=None, probabilities=(0.5,) * 14)
    predict_images.write(iter([one]), tmp_path / "predictions.csv")
    assert predict_images.read(tmp_path / "predictions.csv")[0].name == one.name


@pytest.mark.parametrize("batches", [{}, {"validation_batch_size": 8}, {"validation_batch_size": 1}])
def test_every_image_validates_whatever_the_batch(chests, own_cache, tmp_path, batches):
    options = chosen({"task": "chexnet", "data": chests, "resolution": SIDE, "batch_size": 3, **batches})
    material = task_of(options).prepare(options, tmp_path, False, World(), lambda *_, **__: None)
    _, steps = session._whole_epoch(options, material, World())
    seen = [len(images) for images, _ in material.validation(World()).take(steps)]
    assert (sum(seen), seen[0]) == (
        material.validation_count,
        min(session.validation_batch(options), material.validation_count),
    )


@pytest.fixture
def begin(chests, own_cache, tmp_path):
    """`begin("name", weights=..., seed=...)`: a run's material; returns what its split.json says."""

    def prepared(name, resuming=False, **options):
        (tmp_path / name).mkdir(exist_ok=True)
        options = chosen({"task": "chexnet", "data": chests, "resolution": SIDE, **options})
        task_of(options).prepare(options, tmp_path / name, resuming, World(), lambda *_, **__: None)
        return json.loads((tmp_path / name / "split.json").read_text())

    return prepared


def test_weights_that_have_seen_a_patient_who_would_validate_are_refused(begin, tmp_path, capsys, monkeypatch):
    first = begin("first")
    weights = {"weights": tmp_path / "first/best.keras"}
    second = begin("second", **weights)  # the same seed, the same patients
    assert second == {**first, "seen_before": sorted(first["training"])}
    with pytest.raises(
        InputError, match=r"--weights .*first/best.keras: these weights have seen patient \w+ \(\d+ patients"
    ):
        begin("other", seed=1, **weights)
    (tmp_path / "second/split.json").write_text(json.dumps({**second, "training": []}))
    with pytest.raises(InputError, match="give the --seed of that run"):  # a chain hands on whom it has seen
        begin("third", seed=1, weights=tmp_path / "second/best.keras")
    monkeypatch.setattr(run_folder, "check_data", lambda *_: None)
    (tmp_path / "second/split.json").write_text(json.dumps(second))
    assert begin("second", resuming=True) == second
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "told"), [("best.keras", True), ("a.weights.h5", True), ("densenet121_imagenet.h5", False)]
)
def test_weights_without_a_run_are_told_of_but_for_imagenets(begin, tmp_path, capsys, name, told):
    assert "seen_before" not in begin("run", weights=tmp_path / "elsewhere" / name)
    assert (f"{name}: no split.json of a run lies there" in capsys.readouterr().out) == told


@pytest.mark.parametrize("text", ["[]", "{", '{"training": "a.png"}', '{"training": [1]}'])
def test_a_split_of_a_run_that_is_damaged(begin, tmp_path, text):
    (tmp_path / "first").mkdir()
    (tmp_path / "first/split.json").write_text(text)
    with pytest.raises(ValueError, match=r"first/split.json: found") as error:
        begin("run", weights=tmp_path / "first/best.keras")
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--labels", "brats2020"], "--labels is for brain scans"),
        (["--data", "{empty}"], "found no PNG"),
        (["--data", "{empty}/nowhere"], "nowhere: found nothing"),
    ],
)
def test_wrong_options_are_one_line(run_dir, tmp_path, capsys, arguments, says):
    (tmp_path / "empty").mkdir()
    arguments = [text.format(empty=tmp_path / "empty") for text in arguments]
    assert predict.main([str(run_dir), *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_other_data_than_that_of_the_run(run_dir, capsys):
    content = json.loads((run_dir / "config.json").read_text())
    content["data"]["fingerprint"] = "0" * 64
    (run_dir / "config.json").write_text(json.dumps(content))
    assert predict.main([str(run_dir)]) == 2
    assert "found other data than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "arguments", "says"),
    [
        (lambda text: text, ["elsewhere"], "one at a time"),
        (lambda text: text.replace("0.5", "half"), [], "predictions.csv, line 2"),
        (lambda text: text.replace("Mass,", "Maß,"), [], "line 1: found other columns"),
        (lambda text: text.splitlines()[0], [], "found no image"),
        (lambda text: text.replace("No Finding", "Cough"), [], "label 'Cough'"),
    ],
)
def test_a_table_that_cannot_be_scored(tmp_path, capsys, change, arguments, says):
    table = tmp_path / "predictions.csv"
    one = predict_images.Image(name="a.png", patient="1", findings=(), probabilities=(0.5,) * 14)
    predict_images.write(iter([one]), table)
    table.write_text(change(table.read_text()))
    assert evaluate.main([str(table), *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_package_predicts_as_its_run(run_dir, chests, tmp_path, capsys):
    import keras

    keras.utils.set_random_seed(0)
    models.build("densenet121", input_shape=(SIDE, SIDE, 3)).save(run_dir / "best.keras")
    some = tmp_path / "some"
    some.mkdir()
    for path in sorted(chests.rglob("*.png"))[:3]:
        shutil.copy(path, some)
    assert predict.main([str(run_dir), "--data", str(some), "--output", str(tmp_path / "of_run")]) == 0
    assert package.main([str(run_dir), "--output", str(tmp_path / "chest.lms3d")]) == 0
    assert "densenet121, 32x32x3 -> Atelectasis" in capsys.readouterr().out
    shutil.rmtree(run_dir)
    assert predict.main([str(tmp_path / "chest.lms3d"), "--data", str(some)]) == 0
    written = (tmp_path / "chest-predictions/predictions.csv").read_bytes()
    assert written == (tmp_path / "of_run/predictions.csv").read_bytes()


def test_an_export_is_compared_on_an_image_of_the_run(run_dir, chests):
    run = packages.trained_run(run_dir)
    name, image = task_of(run.trained).sample(run)
    (path,) = chests.rglob(name.removeprefix("image "))
    np.testing.assert_allclose(network()(image[None]).numpy()[0], expected(path), rtol=1e-5)


def test_a_network_of_no_registered_name_is_not_packaged(run_dir, capsys):
    assert package.main([str(run_dir)]) == 2
    assert "cannot build from its name, densenet121" in capsys.readouterr().err
