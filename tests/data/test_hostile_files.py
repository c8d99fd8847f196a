"""Our files that somebody has changed are made again, or refused in one line. Each of these kinds of damage once ended
differently."""

import io
import json
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from lms3d.data import files
from lms3d.data.brats import layouts, msd
from lms3d.data.brats.preprocess import cube
from lms3d.data.chest_xray import collection, png, records, shards
from lms3d.data.errors import LONGEST, DataError
from lms3d.data.segmentation import layouts as organs
from lms3d.data.volumes import cache, fingerprint
from lms3d.data.volumes.geometry import Geometry
from tests.data.small_data import random_case, reopened, write_case
from tests.data.small_radiographs import write_set
from tests.data.small_volumes import write_nnunet


def changed(path: Path, change) -> None:
    value = json.loads(path.read_text())
    path.write_text(json.dumps(change(value) or value))


def refused(call, pattern: str) -> str:
    with pytest.raises(DataError, match=pattern) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_value_of_any_length_makes_a_line_that_can_be_read():
    line = str(DataError(f"file: found {'x' * 10**6}; expected y"))
    assert len(line) < LONGEST
    assert line.startswith("file: found xxx")
    assert line.endswith("; expected y")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_json(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    refused(lambda: files.read_json(tmp_path / "a.json", advice="restore it"), "found damaged JSON")


def test_a_label_twice_in_dataset_json(tmp_path):
    write_nnunet(tmp_path)
    text = (tmp_path / "dataset.json").read_text()
    (tmp_path / "dataset.json").write_text(text.replace('"spleen"', '"liver"'))
    refused(
        lambda: organs.find(tmp_path), "dataset.json: found key 'liver' twice in one object; expected every key once"
    )


def test_json_of_another_kind(tmp_path):
    for text in ("[]", "7", '{"a": 1}'):
        (tmp_path / "a.json").write_text(text)
        refused(
            lambda: files.read_json(tmp_path / "a.json", advice="restore it", keys=("a", "b")), "an object with a, b"
        )


GEOMETRY = {"shape": [4, 5, 6], "affine": np.eye(4).tolist(), "box": [[0, 0, 0], [2, 2, 2]]}


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [4, 5]},
        {"shape": [0, 5, 6]},
        {"shape": [4, 5, 10**6]},
        {"affine": [[1]]},
        {"affine": [[float("nan")] * 4] * 4},
        {"box": [[0, 0, 0], [0, 2, 2]]},
        {"box": [[0, 0, 0]]},
        {"box": "ab"},
        {"shape": None},
    ],
)
def test_a_grid_that_no_scan_has(change):
    assert Geometry.from_json(GEOMETRY).to_json() == GEOMETRY
    with pytest.raises((ValueError, TypeError)):
        Geometry.from_json(GEOMETRY | change)


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_an_image_is_a_case_that_cannot_be_used(tmp_path):
    """Opening it would wait for somebody who writes to it, for ever."""
    root = write_nnunet(tmp_path / "set")
    (root / "imagesTr" / "case_1_0000.nii.gz").unlink()
    os.mkfifo(root / "imagesTr" / "case_1_0000.nii.gz")
    cases, schema = organs.find(root).data_set
    table = fingerprint.examine(cases, schema, directory=tmp_path, workers=1)
    assert [bool(problem) for problem in table["problem"]] == [False, True, False]
    assert "case_1_0000.nii.gz: found no regular file; expected a NIfTI file" in table["problem"][1]


@pytest.fixture
def volumes(tmp_path) -> cache.Cache:
    write_case(tmp_path / "set/BraTS20_Training_001", random_case(1))
    cases, schema = layouts.find_cases(tmp_path / "set")
    return cache.build(cases, schema, cube(16), directory=tmp_path / "cache", workers=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.pop("scale") and None,
        lambda e: e.update(scale=[1, 2]),
        lambda e: e.update(brain_std=[None] * 4),
        lambda e: [1],
        lambda e: e.update(files={}),
        lambda e: e.update(geometry={}),
        lambda e: e.update(files={"image.npy": 7}),
        lambda e: e.update(brain=7),
    ],
)
def test_an_entry_with_other_figures(volumes, change):
    (case_id,) = volumes.ids
    changed(volumes.directory / case_id / "entry.json", change)
    refused(lambda: reopened(volumes).entry(case_id), r"entry.json: found .*delete the folder of this entry")


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"ids": [], "skipped": {"a": 1}}'])
def test_an_index_with_other_values(volumes, tmp_path, text):
    (volumes.directory / "index.json").write_text(text)
    cases, schema = layouts.find_cases(tmp_path / "set")
    refused(lambda: cache.build(cases, schema, cube(16), directory=tmp_path / "cache", workers=1), "index.json: found")


def huge() -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f2", "fortran_order": False, "shape": (1 << 50,)})
    return stream.getvalue()


@pytest.mark.parametrize("head", [huge(), b"\x93NUMPY\1\0\4\0{'a'", b"\x93NUMPY\1\0\6\0((((((", b""])
def test_an_array_with_another_head(volumes, head):
    path = volumes.directory / volumes.ids[0] / "image.npy"
    path.write_bytes(head + path.read_bytes()[len(head) :])
    refused(
        lambda: reopened(volumes).image(volumes.ids[0]) if head else _empty(volumes, path),
        "image.npy: found a damaged cache entry",
    )


def _empty(volumes, path):
    path.write_bytes(b"")
    return reopened(volumes).image(volumes.ids[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.pop("problem") and None,
        lambda f: f.update(size_x=None),
        lambda f: f.update(case="other"),
        lambda f: [7],
    ],
)
def test_damaged_facts_are_found_again(tmp_path, change):
    write_case(tmp_path / "set/BraTS20_Training_001", random_case(1))
    cases, schema = layouts.find_cases(tmp_path / "set")
    before = fingerprint.examine(cases, schema, directory=tmp_path, workers=1)
    (path,) = tmp_path.rglob("BraTS20_Training_001.json")
    changed(path, change)
    assert fingerprint.examine(cases, schema, directory=tmp_path, workers=1).equals(before)


@pytest.fixture
def index(tmp_path) -> Path:
    found = collection.find_images(write_set(tmp_path / "set", {f"{k:08d}_000.png": "Mass" for k in range(12)}))
    return shards.build(found, 32, directory=tmp_path / "cache", workers=1).directory


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(labels=[[99]] * len(a["labels"])),
        lambda a: a.update(offsets=[10**9] * len(a["offsets"])),
        lambda a: a.update(names=7),
        lambda a: a.update(offsets=[-1] * len(a["offsets"])),
        lambda a: a.update(patients=[]),
        lambda a: a.update(skipped=[[1]]),
        lambda a: [1],
    ],
)
def test_shards_whose_contents_are_told_otherwise(index, change):
    changed(next(index.glob("training-*.json")), change)
    refused(lambda: records.open_index(index), r"training-.*json: found .*delete this file and run again")


@pytest.mark.parametrize("name", ["../x.tfrecord", "/etc/passwd", ".."])
def test_a_shard_elsewhere(index, name):
    changed(index / "index.json", lambda about: about["parts"].update(test=[name]))
    refused(lambda: records.open_index(index), "index.json: found values that cannot be used")


def test_an_image_that_ends_early(index):
    part = records.open_index(index).parts["training"]
    changed(next(index.glob("training-*.json")), lambda a: a.update(offsets=[a["bytes"] - 5] * len(a["offsets"])))
    assert part.image(0).shape == (32, 32)
    refused(lambda: records.open_index(index).parts["training"].image(0), "found 5 bytes of an image; expected 32x32")


def test_an_image_that_would_unfold_to_gigabytes(tmp_path):
    """Pillow warns at 89 million pixels and stops at 179 million, which may be 1.4 GB."""
    rows = zlib.compress(bytes(12_000 * 12_001 // 8 + 12_000), 9)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 12_000, 12_000, 1, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)) for kind, content in chunks
    ))  # fmt: skip
    tracemalloc.start()
    refused(lambda: png.read_grey(tmp_path / "a.png", 32), "12000x12000 pixels, where")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


@pytest.mark.parametrize("key", ["modality", "labels"])
def test_digits_that_are_no_numbers(tmp_path, key):
    about = {"modality": {"0": "FLAIR"}, "labels": {"0": "background"}}
    about[key]["²"] = "x"
    (tmp_path / "dataset.json").write_text(json.dumps(about))
    refused(lambda: msd._volumes(tmp_path / "dataset.json"), "dataset.json: found")
