"""Every reader of files that others may have made: a sound set of files for it, and a call that reads them.

The content is returned in a form that can be compared (`repr`).
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from lms3d import tasks
from lms3d.data import split
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.preprocess import cube
from lms3d.data.chest_xray import collection, png, records, shards
from lms3d.data.volumes import cache, fingerprint, normalise
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.engine import plan_cache
from lms3d.engine.cost import Machine
from lms3d.engine.request import Settings
from lms3d.tasks import chosen
from lms3d.tasks.chexnet import predict as findings
from lms3d.tasks.packages import archive, description
from lms3d.tasks.volumes import label_maps, plain_maps
from lms3d.training import checkpoint, config_file, run_state
from lms3d.training.run_state import RunState
from tests.data.small_data import AFFINE, random_case, save, write_case
from tests.data.small_radiographs import many, write_set
from tests.lms3d.engine.toy_graphs import training

CASE = "BraTS20_Training_001"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way in: `make` writes sound files into an empty folder, `read` reads them.

    damaged: a pattern of the files that may be damaged. sealed: checksums let nothing come back but the content that was written.
    """

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    damaged: str = "**/*"
    sealed: bool = False


def _brats(folder: Path) -> None:
    write_case(folder / CASE, random_case(1))


def _read_brats(folder: Path) -> Any:
    found = find_cases(folder, require_truth=False)
    read = []
    for case in found.cases:
        images, affine = load_images(case)
        truth = load_truth(case, found.schema, images.shape[:3], affine)
        read.append((case.patient, case.grade, zlib.crc32(images.tobytes()), truth is not None))
    return read


def _manifest(folder: Path) -> None:
    _brats(folder)
    row = {"case": "anna-1", "patient": "anna", "truth": f"{CASE}/{CASE}_seg.nii.gz"}
    row |= {name: f"{CASE}/{CASE}_{name}.nii.gz" for name in ("t1", "t1ce", "flair", "t2")}
    labels = {"name": "ours", "labels": {"NCR": 1, "ED": 2, "ET": 4}, "learnt": ["NCR", "ED", "ET"],
              "regions": {"WT": ["NCR", "ED", "ET"], "TC": ["NCR", "ET"]},
              "nested": [["WT", "ED"], ["TC", "NCR"], ["ET", "ET"]]}  # fmt: skip
    (folder / "a.json").write_text(json.dumps({"labels": labels, "cases": [row]}))
    (folder / "a.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")


def _msd(folder: Path) -> None:
    arrays = random_case(1)
    truth = arrays.pop("truth")
    for part, values in (("imagesTr", np.stack([*arrays.values()], -1)), ("labelsTr", truth // 2)):
        save(values, folder / "Task01" / part / "BRATS_001.nii.gz")
    about = {"modality": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
             "labels": {"0": "background", "1": "edema", "2": "non-enhancing tumor", "3": "enhancing tumour"}}  # fmt: skip
    (folder / "Task01/dataset.json").write_text(json.dumps(about))


def _mapping(folder: Path) -> None:
    _brats(folder)
    (folder / "name_mapping.csv").write_text(
        f"Grade,BraTS_2019_subject_ID,BraTS_2020_subject_ID\nHGG,BraTS19_CBICA_AAB_1,{CASE}\n"
    )


def _chests(folder: Path) -> None:
    rows = many(4)
    write_set(folder, rows, test=list(rows)[:2])


def _read_chests(folder: Path) -> Any:
    found = collection.find_images(folder)
    collection.require_sound(found.problems)
    return [
        (one.name, one.patient, one.findings, zlib.crc32(png.read_grey(one.path, 32).tobytes()))
        for one in found.images.values()
    ]


def _shards(folder: Path) -> None:
    (folder / "set").mkdir()
    _chests(folder / "set")
    shards.build(collection.find_images(folder / "set"), 32, directory=folder / "made", workers=1)


def _read_shards(folder: Path) -> Any:
    (made,) = (path for path in (folder / "made").iterdir() if path.is_dir())
    parts = records.open_index(made).parts
    return [
        (part.names, part.labels.tolist(), [zlib.crc32(part.image(k).tobytes()) for k in range(len(part))])
        for part in parts.values()
    ]


def _cache(folder: Path) -> None:
    _brats(folder / "set")
    cases, schema = find_cases(folder / "set")
    cache.build(cases, schema, cube(16), directory=folder / "made", workers=1)
    fingerprint.examine(cases, schema, directory=folder / "made", workers=1)


def _read_cache(folder: Path) -> Any:
    """The cache, built again if sizes tell that something is wrong."""
    cases, schema = find_cases(folder / "set")
    volumes = cache.build(cases, schema, cube(16), directory=folder / "made", workers=1)
    table = fingerprint.examine(cases, schema, directory=folder / "made", workers=1)
    (case_id,) = volumes.ids
    volumes.cut_off()
    truth = volumes.truth(case_id)
    images = [normalise.image(normalise.fit(kind, volumes, volumes.ids), volumes, case_id) for kind in normalise.KINDS]
    return (
        fingerprint.as_text(table),
        zlib.crc32(images[0].tobytes()),
        truth is not None,
        volumes.geometry(case_id).shape,
    )


def _split(folder: Path) -> None:
    split.save(split.Split(training=("a", "b"), validation=("c",)), folder / "split.json")


def _run(folder: Path) -> None:
    content = {"options": chosen({"stages": ((16, 2),), "box": (32, 48, 32)}).to_json(), "versions": {"lms3d": "0.1.0"},
               "normalisation": {"kind": "case"}, "data": {"fingerprint": "0" * 64}, "command": ["python"]}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "history.csv").write_text("epoch,loss,val_loss\n1,0.5,0.25\n2,0.5,0.125\n")


def _read_run(folder: Path) -> Any:
    trained, content = tasks.load(folder)
    shapes = trained.volume_shape(), trained.sample_shape(), trained.size_text()
    told = description.describe(folder, trained, content, {"outputs": ["a"], "channels": ["b"]}, {}, {})
    return trained.to_json(), shapes, sorted(content), config_file.fingerprint(content, folder), told


def _checkpoint(folder: Path) -> None:
    state = RunState(
        size=1, steps_per_epoch=4, samples_per_step=1, rows=({"epoch": 1.0, "loss": 0.5},), slabs={"train": "16/8"}
    )
    checkpoint.save(checkpoint.path_in(folder), {"model/0": np.arange(6.0), "own": np.ones(2)}, state.to_json())


def _read_checkpoint(folder: Path) -> Any:
    found = run_state.read(folder)
    assert found is not None
    state = found[0].state.rescaled(size=2, steps_per_epoch=2, samples_per_step=2)
    return state, state.stopped_early, {name: array.tolist() for name, array in found[0].variables.items()}


def _other_version(folder: Path) -> None:
    """Writes the state of a checkpoint alone, to be damaged; reading seals it again, as another version of lms3d would."""
    _checkpoint(folder)
    _, state = checkpoint.load(checkpoint.path_in(folder))
    (folder / "state.json").write_text(json.dumps(state))


def _read_other_version(folder: Path) -> Any:
    try:
        state = json.loads((folder / "state.json").read_bytes())
    except (ValueError, RecursionError):
        return "no JSON"
    checkpoint.save(checkpoint.path_in(folder), {"model/0": np.ones(2)}, state)
    return _read_checkpoint(folder)


def _predictions(folder: Path) -> None:
    truth = random_case(1)["truth"]
    geometry = {"shape": list(truth.shape), "affine": AFFINE.tolist(), "box": [[0] * 3, list(truth.shape)]}
    label_maps.Predictions(
        directory=folder, label="run", run="runs/a", model="unet3d", shape=(16, 16, 16), stretched=True, tta=None, data="x",
        fingerprint="0", schema="brats2020", cases={CASE: geometry},
    ).save()  # fmt: skip
    label_maps.write_labels(truth, AFFINE, folder / "native" / f"{CASE}.nii.gz")


def _read_predictions(folder: Path) -> Any:
    from lms3d.data.brats.schema import schema_named
    from lms3d.data.volumes.geometry import Geometry

    found = label_maps.load(folder)
    for case, geometry in found.cases.items():
        labels, affine = label_maps.read_labels(found.native(case))
        plain_maps.affine_of(found.native(case))
        plain_maps.read(found.native(case), schema_named(found.schema), labels.shape, affine, like="itself")
        Geometry.from_json(geometry).network_affine(found.shape)
    return found


def _findings(folder: Path) -> None:
    image = findings.Image(name="a.png", patient="7", findings=("Mass",), probabilities=(0.25,) * 14)
    findings.write(iter([image, image]), folder / findings.FILE)


def _package(folder: Path) -> None:
    model = {"format": archive.FORMAT, "format_version": archive.VERSION, "task": "brats", "options": {}, "meaning": {}}
    archive.write(
        archive.Content(model=model, weights=[np.ones(3, np.float32), np.zeros((2, 2), np.float32)]), folder / "a.lms3d"
    )


def _read_package(folder: Path) -> Any:
    content = archive.read(folder / "a.lms3d")
    return content.model, [array.tolist() for array in content.weights]


def _read_plan(folder: Path) -> Any:
    """A plan that swaps, from the cache in the folder or made again."""
    request = Settings(limit_bytes=7 << 20).request(training(3), Machine(flops_per_second=1e10))
    with mock.patch.dict(os.environ, LMS3D_CACHE=str(folder)):
        return plan_cache.cached_plan(request)[0]


# -- readers that need TensorFlow


def _model(folder: Path) -> None:
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((4, 4, 4, 2))
    x = keras.layers.Conv3D(2, 3, padding="same", name="a")(inputs)
    x = keras.layers.LeakyReLU(name="b")(keras.layers.GlobalAveragePooling3D()(x))
    model = keras.Model(inputs, keras.layers.Dense(1, name="c")(x))
    model.compile("sgd", "mse")
    model.save(folder / "best.keras")


def _config(folder: Path) -> None:
    """Writes the config.json of a model alone, to be damaged; reading puts it into the file."""
    _model(folder)
    with zipfile.ZipFile(folder / "best.keras") as archive:
        (folder / "config.json").write_bytes(archive.read("config.json"))


def _with_config(folder: Path) -> None:
    path = folder / "best.keras"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"config.json": (folder / "config.json").read_bytes()}).items():
            archive.writestr(name, content)


def _read_model(folder: Path) -> Any:
    from lms3d.tasks import inference

    model = inference.load_model(folder / "best.keras")
    return [np.asarray(weight).tolist() for weight in model.weights], model.input_shape


def _read_any_model(folder: Path) -> Any:
    from lms3d.keras_step import saved_model

    return [np.asarray(weight).tolist() for weight in saved_model.load(folder / "best.keras").weights]


def _read_config(folder: Path) -> Any:
    _with_config(folder)
    return _read_model(folder)


def _speeds(folder: Path) -> None:
    from lms3d.engine.tensorflow import op_costs, speeds
    from lms3d.engine.tensorflow.probing import Cost

    speeds.write_store(folder / "machine.json", {"here": dict.fromkeys(speeds.SPEEDS, 2.0)})
    op_costs._save(folder / "ops.json", "here", {"Conv3D": Cost(1.0, 0.5, 7), "Odd": None})


def _read_speeds(folder: Path) -> Any:
    from lms3d.engine.tensorflow import op_costs, speeds

    stored = speeds._stored(speeds.read_store(folder / "machine.json"), "here")
    return stored, op_costs._load(folder / "ops.json")


READERS: dict[str, Reader] = {
    "scans (NIfTI)": Reader(make=_brats, read=_read_brats),
    "manifest (JSON)": Reader(make=_manifest, read=lambda folder: find_cases(folder / "a.json"), damaged="a.json"),
    "manifest (CSV)": Reader(
        make=_manifest, read=lambda folder: find_cases(folder / "a.csv", labels="msd"), damaged="a.csv"
    ),
    "dataset.json": Reader(make=_msd, read=_read_brats, damaged="**/dataset.json"),
    "name_mapping.csv": Reader(make=_mapping, read=_read_brats, damaged="**/name_mapping.csv"),
    "radiographs (PNG)": Reader(make=_chests, read=_read_chests, damaged="**/*.png", sealed=True),
    "radiographs (tables)": Reader(make=_chests, read=_read_chests, damaged="*.[ct][sx][vt]"),
    "shards (TFRecord)": Reader(make=_shards, read=_read_shards, damaged="**/*.tfrecord", sealed=True),
    "shards (JSON)": Reader(make=_shards, read=_read_shards, damaged="made/*/*.json"),
    "cache (arrays)": Reader(make=_cache, read=_read_cache, damaged="**/*.npy", sealed=True),
    "cache (JSON)": Reader(make=_cache, read=_read_cache, damaged="made/**/*.json"),
    "split.json": Reader(make=_split, read=lambda folder: split.load(folder / "split.json")),
    "run folder": Reader(make=_run, read=_read_run),
    "checkpoint": Reader(make=_checkpoint, read=_read_checkpoint, sealed=True),
    "checkpoint of another version": Reader(make=_other_version, read=_read_other_version, damaged="state.json"),
    "predictions": Reader(make=_predictions, read=_read_predictions),
    "predictions.csv": Reader(make=_findings, read=lambda folder: findings.read(folder / findings.FILE)),
    "plan": Reader(make=_read_plan, read=_read_plan, damaged="plans/*.json"),
    "package": Reader(make=_package, read=_read_package, sealed=True),
}
NETWORKS: dict[str, Reader] = {
    "network (.keras)": Reader(make=_model, read=_read_model, sealed=True),
    "network (its config)": Reader(make=_config, read=_read_config, damaged="config.json"),
    "network of anyone (.keras)": Reader(make=_model, read=_read_any_model, sealed=True),
    "measured speeds": Reader(make=_speeds, read=_read_speeds),
}
"""The readers that need TensorFlow, which they import when they are called."""
