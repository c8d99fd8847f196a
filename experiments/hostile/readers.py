"""Every reader of files that others may have made: a sound set of files for it, and a call that reads them.

What is read is returned in a form that can be compared (`repr`): of files with checksums nothing may come back but what was
written. Readers that need TensorFlow are in `experiments.hostile.networks`.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from data import split
from data.brats import cache, fingerprint, normalise
from data.brats.case import check_frames, load_images, load_truth
from data.brats.layouts import find_cases
from data.brats.preprocess import cube
from data.chest_xray import collection, png, records, shards
from lms3d import config
from lms3d.engine import plan_cache
from lms3d.engine.cost import Machine
from lms3d.engine.ir import Op, StepGraph, Tensor
from lms3d.engine.request import Settings, StepRequest
from lms3d.tasks import chosen
from lms3d.tasks.brats import label_maps, plain_maps
from lms3d.tasks.chexnet import predict as findings
from lms3d.tasks.packages import archive, description
from lms3d.training import checkpoint, run_state
from lms3d.training.run_state import RunState

SIDE = 12
CASE = "BraTS20_Training_001"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way in."""

    make: Callable[[Path], Any]
    """Writes sound files into an empty folder."""
    read: Callable[[Path], Any]
    """Reads them."""
    damaged: str = "**/*"
    """Which of the files may be damaged: a pattern."""
    sealed: bool = False
    """Nothing else than what was written may come back."""


def _volume(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values, np.diag([1.0, 1, 2, 1])), path)


def _brain(seed: int) -> np.ndarray:
    values = np.zeros((SIDE,) * 3, np.int16)
    values[2:-2, 2:-2, 2:-2] = np.random.default_rng(seed).integers(50, 900, (SIDE - 4,) * 3)
    return values


def _labels() -> np.ndarray:
    labels = np.zeros((SIDE,) * 3, np.uint8)
    labels[3:9, 3:9, 3:9], labels[4:8, 4:8, 4:8], labels[5:7, 5:7, 5:7] = 2, 4, 1
    return labels


def _brats(folder: Path) -> None:
    for number, name in enumerate(("t1", "t1ce", "flair", "t2")):
        _volume(folder / CASE / f"{CASE}_{name}.nii.gz", _brain(number))
    _volume(folder / CASE / f"{CASE}_seg.nii.gz", _labels())


def _read_brats(folder: Path) -> Any:
    found = find_cases(folder, require_truth=False)
    read = []
    for case in found.cases:
        images, affine = load_images(case)
        truth = load_truth(case, found.schema, images.shape[:3], affine)
        check_frames(case)
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
    for part, values in (("imagesTr", np.stack([_brain(k) for k in range(4)], -1)), ("labelsTr", _labels() // 2)):
        _volume(folder / "Task01" / part / "BRATS_001.nii.gz", values)
    about = {"modality": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
             "labels": {"0": "background", "1": "edema", "2": "non-enhancing tumor", "3": "enhancing tumour"}}  # fmt: skip
    (folder / "Task01/dataset.json").write_text(json.dumps(about))


def _mapping(folder: Path) -> None:
    _brats(folder)
    (folder / "name_mapping.csv").write_text(
        f"Grade,BraTS_2019_subject_ID,BraTS_2020_subject_ID\nHGG,BraTS19_CBICA_AAB_1,{CASE}\n"
    )


def _chests(folder: Path) -> None:
    (folder / "images").mkdir()
    lines = ["Image Index,Finding Labels,Patient ID"]
    for number in range(8):
        name = f"{number:08d}_000.png"
        png.write(np.random.default_rng(number).integers(0, 256, (40, 40), np.uint8), folder / "images" / name)
        lines.append(f"{name},{'Mass|Nodule' if number % 2 else 'No Finding'},{number}")
    (folder / "Data_Entry_2017.csv").write_text("\n".join(lines) + "\n")
    names = [line.split(",")[0] for line in lines[1:]]
    (folder / "test_list.txt").write_text("\n".join(names[:2]) + "\n")
    (folder / "train_val_list.txt").write_text("\n".join(names[2:]) + "\n")


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
    """Built again where sizes tell that something is wrong."""
    cases, schema = find_cases(folder / "set")
    volumes = cache.build(cases, schema, cube(16), directory=folder / "made", workers=1)
    table = fingerprint.examine(cases, schema, directory=folder / "made", workers=1)
    (case_id,) = volumes.ids
    volumes.cut_off()
    truth = volumes.truth(case_id)
    images = [normalise.image(normalise.fit(kind, volumes, volumes.ids), volumes, case_id) for kind in normalise.KINDS]
    return fingerprint.as_text(table), zlib.crc32(images[0].tobytes()), truth is not None, volumes.geometry(case_id).shape


def _split(folder: Path) -> None:
    split.save(split.Split(training=("a", "b"), validation=("c",)), folder / "split.json")


def _run(folder: Path) -> None:
    content = {"options": chosen({"stages": ((16, 2),), "box": (32, 48, 32)}).to_json(), "versions": {"lms3d": "0.1.0"},
               "normalisation": {"kind": "case"}, "data": {"fingerprint": "0" * 64}, "command": ["python"]}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "history.csv").write_text("epoch,loss,val_loss\n1,0.5,0.25\n2,0.5,0.125\n")


def _read_run(folder: Path) -> Any:
    trained, content = config.load(folder)
    shapes = trained.volume_shape(), trained.sample_shape(), trained.size_text()
    told = description.describe(folder, trained, content, {"outputs": ["a"], "channels": ["b"]}, {}, {})
    return trained.to_json(), shapes, sorted(content), config.fingerprint(content, folder), told


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
    """The state of a checkpoint alone, to be damaged; reading seals it again, as another version of lms3d would."""
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
    geometry = {"shape": [SIDE] * 3, "affine": np.diag([1.0, 1, 2, 1]).tolist(), "box": [[0] * 3, [SIDE] * 3]}
    label_maps.Predictions(
        directory=folder, label="run", run="runs/a", model="unet3d", shape=(16, 16, 16), stretched=True, tta=None, data="x",
        fingerprint="0", schema="brats2020", cases={CASE: geometry},
    ).save()  # fmt: skip
    label_maps.write_labels(_labels(), np.diag([1.0, 1, 2, 1]), folder / "native" / f"{CASE}.nii.gz")


def _read_predictions(folder: Path) -> Any:
    from data.brats.geometry import Geometry
    from data.brats.schema import schema_named

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


_MIB = 1 << 20


def _step() -> StepRequest:
    """A step of a few operations, whose plan swaps."""
    names = ["x", *(f"f{k}" for k in range(6))]
    ops = [Op("x", "Placeholder", outputs=(Tensor("x:0", _MIB, 4),))]
    ops += [Op(b, "Conv3D", (f"{a}:0",), outputs=(Tensor(f"{b}:0", _MIB, 4),), flops=_MIB) for a, b in pairwise(names)]
    last = "f5"
    for k in reversed(range(6)):
        ops.append(Op(f"g{k}", "Grad", (f"{last}:0", f"f{k}:0"), outputs=(Tensor(f"g{k}:0", _MIB, 4),), flops=_MIB))
        last = f"g{k}"
    graph = StepGraph(tuple(ops), frozenset({f"{last}:0"}), _MIB)
    return Settings(limit_bytes=7 * _MIB).request(graph, Machine(flops_per_second=1e10))


def _read_plan(folder: Path) -> Any:
    """The plan, from the cache in the folder or made again."""
    with _cache_folder(folder):
        return plan_cache.make_plan(_step())[0]


@contextmanager
def _cache_folder(folder: Path) -> Iterator[None]:
    before = os.environ.get("LMS3D_CACHE")
    os.environ["LMS3D_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LMS3D_CACHE"]
        else:
            os.environ["LMS3D_CACHE"] = before


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
