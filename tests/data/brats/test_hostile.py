"""Any file on disk is either read as nibabel reads it, or named in one line. There is never another error."""

import contextlib
import gzip
import os
import re
import shutil
import struct
import tracemalloc
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from lms3d.data.brats.layouts import find_cases
from lms3d.data.errors import DataError
from lms3d.data.volumes import volume
from lms3d.data.volumes.case import load_images, load_truth
from tests.data.small_data import AFFINE, SHAPE, random_case, save, write_case

DIM, DATATYPE, SLOPE, INTER, OFFSET, MAGIC = 40, 70, 112, 116, 108, 344  # bytes of a NIfTI-1 header
RGB, COMPLEX = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")]), np.complex64


def refused(path: Path, pattern: str) -> None:
    tracemalloc.start()
    with pytest.raises(DataError) as caught:
        volume.read_volume(path, np.float32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: found ")
    assert re.search(pattern, str(caught.value)), caught.value
    assert str(caught.value).count("; ") >= 2
    assert "\n" not in str(caught.value)
    assert peak < 30e6


def patched(path: Path, offset: int, form: str, *values: float) -> Path:
    """The file with other numbers at one place of its header."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as stream:
        content = bytearray(stream.read())
    struct.pack_into(f"<{form}", content, offset, *values)
    with opened(path, "wb") as stream:
        stream.write(content)
    return path


@pytest.fixture(params=[".nii.gz", ".nii"])
def image(tmp_path, request):
    return save(random_case(1)["t1"], tmp_path / f"t1{request.param}")


@pytest.mark.parametrize(
    ("array", "pattern"),
    [
        (np.zeros(SHAPE, RGB), r"colours \(RGB\)"),
        (np.ones(SHAPE, COMPLEX), "complex64 numbers"),
        (np.ones((*SHAPE, 2), np.int16), r"2 volumes \(20x24x18x2\); expected one"),
        (np.ones((20, 24), np.int16), r"2 axes \(20x24\); expected a volume with 3 axes"),
        (np.ones((20,), np.int16), "1 axes"),
        (np.ones((4, 4, 4, 1, 3), np.int16), "5 axes"),
        (np.full(SHAPE, np.nan, np.float32), "8640 voxels that are NaN or infinite"),
        (np.full(SHAPE, np.inf, np.float64), "8640 voxels that are NaN or infinite"),
        (np.full(SHAPE, 1e300, np.float64), "8640 voxels that are NaN or infinite"),  # no float32
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")  # a warning of numpy would stand before the one line
def test_kinds_of_content(tmp_path, array, pattern):
    refused(save(array, tmp_path / "t1.nii.gz"), pattern)


@pytest.mark.parametrize(
    ("offset", "form", "values", "pattern"),
    [
        (DIM, "4h", (3, 32767, 32767, 32767), "claims 32767x32767x32767 voxels; expected at most"),
        (DIM, "4h", (3, 1000, 1000, 1000), "bytes, which cannot hold 1000x1000x1000 voxels"),
        (DIM, "4h", (3, 20, 24, 19), "cannot be read"),
        (DIM, "4h", (3, 20, 24, 10), "cannot be read .*goes on after"),
        (DIM, "4h", (3, 20, 0, 18), "3 axes .20x0x18."),
        (DIM, "4h", (3, 20, -24, 18), "3 axes .20x-24x18."),
        (DIM, "h", (0,), "0 axes .none."),
        (DIM, "h", (-3,), "axes"),
        (DIM, "h", (99,), "99 axes"),
        (DATATYPE, "h", (1,), "voxels of unknown type 1|voxels that are"),
        (DATATYPE, "h", (12345,), "voxels of unknown type 12345"),
        (SLOPE, "f", (1e30,), "scaled by 1e.30"),
        (SLOPE, "f", (np.inf,), "scaled by inf"),
        (SLOPE, "2f", (1, np.nan), "shifted by nan; expected a number as scl_inter"),
        (OFFSET, "f", (1e30,), "voxels begin at byte 1e.30"),
        (OFFSET, "f", (np.nan,), "voxels begin at byte nan"),
        (OFFSET, "f", (0,), "voxels begin at byte 0"),
        (MAGIC, "4s", (b"ni1\0",), "its magic is b'ni1'"),
        (MAGIC, "4s", (b"\0\0\0\0",), "its magic is"),
        (0, "i", (347,), "not those of a NIfTI header"),
        (280, "4f", (np.nan, 0, 0, 0), "an affine that is not finite"),
        (280, "4f", (0, 0, 0, 0), "an affine that is not finite or has an axis without length"),
        (280, "4f", (1e30, 0, 0, 0), r"voxels of 1e\+30 x 1 x 1 mm"),
        (280, "12f", (1, 1, 1, 0) * 3, "an affine"),
        (292, "f", (-6e32,), "an affine"),
    ],
)
def test_headers(image, offset, form, values, pattern):
    refused(patched(image, offset, form, *values), pattern)


@pytest.mark.parametrize("slope", [0, np.nan])
def test_no_scale_factor_means_as_stored(image, slope):
    array, _ = volume.read(patched(image, SLOPE, "2f", slope, 7), np.float32)
    np.testing.assert_array_equal(array, random_case(1)["t1"])


def test_a_scale_factor_is_applied(image):
    array, _ = volume.read(patched(image, SLOPE, "2f", 0.5, -3), np.float32)
    np.testing.assert_array_equal(array, random_case(1)["t1"].astype(np.float32) * 0.5 - 3)


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, ">i2", np.uint16, np.int32, np.float32, ">f4", np.float64])
def test_kinds_of_numbers(tmp_path, kind, dtype):
    array = (random_case(1)["t1"] % 200).astype(dtype)
    header = kind.header_class(endianness=">") if np.dtype(dtype).byteorder == ">" else None
    nib.save(kind(array, AFFINE, header, dtype=array.dtype), tmp_path / "a.nii.gz")
    found, read = volume.read(tmp_path / "a.nii.gz", np.float32)
    np.testing.assert_array_equal(found, array.astype(np.float32))
    np.testing.assert_array_equal(read.affine, AFFINE)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"not an image\n" * 100, bytes(400), gzip.compress(b"not an image" * 100), b"\x1f\x8b\x08"],
    ids=[
        "empty",
        "one byte",
        "text",
        "zeros",
        "compressed text",
        "cut in its header",
    ],  # compressed bytes hold the time of day
)
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_files_of_another_kind(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "found a file that cannot be read")


def test_no_file_a_folder_and_a_pipe(tmp_path):
    refused(tmp_path / "a.nii", "found nothing; expected a NIfTI file")
    (tmp_path / "b.nii.gz").mkdir()
    refused(tmp_path / "b.nii.gz", "found a folder; expected a NIfTI file")
    os.mkfifo(tmp_path / "c.nii.gz")
    refused(tmp_path / "c.nii.gz", "found no regular file")


@pytest.mark.parametrize("where", [-1, -6, -40])
def test_the_checksum_of_a_compressed_file_is_compared(tmp_path, where):
    path = save(random_case(1)["t1"], tmp_path / "t1.nii.gz")
    content = bytearray(path.read_bytes())
    content[where] ^= 0x55
    path.write_bytes(content)
    refused(path, "found a file that cannot be read")


def test_a_compressed_file_that_expands_without_end(tmp_path):
    path = save(random_case(1)["t1"], tmp_path / "t1.nii")
    (tmp_path / "t1.nii.gz").write_bytes(gzip.compress(path.read_bytes() + bytes(200_000_000), compresslevel=1))
    refused(tmp_path / "t1.nii.gz", "goes on after")


def damage(folder: Path, rng: np.random.Generator) -> str:
    """Damages one file of a case; returns a description of the damage."""
    files = sorted(path for path in folder.rglob("*.nii*") if path.is_file()) or [folder]
    path = files[rng.integers(len(files))]
    other = files[rng.integers(len(files))]
    how = str(rng.choice(list(DAMAGES)))
    with contextlib.suppress(OSError, EOFError, zlib.error):  # a file that was damaged before may be unreadable
        DAMAGES[how](path, other, rng)
    return f"{how}: {path.name}, {other.name}"


def _flip_header(path, other, rng):
    content = bytearray(gzip.decompress(path.read_bytes()))
    for place in rng.integers(0, 352, rng.integers(1, 6)):
        content[place] = rng.integers(256)
    path.write_bytes(gzip.compress(bytes(content), 1))


def _flip_bytes(path, other, rng):
    content = bytearray(path.read_bytes())
    for place in rng.integers(0, len(content), rng.integers(1, 4)):
        content[place] = rng.integers(256)
    path.write_bytes(content)


def _truncate(path, other, rng):
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size)])


def _rename(path, other, rng):
    path.rename(path.with_name(str(rng.choice(["x.nii.gz", "BraTS20_Training_001_t9.nii.gz", "notes.txt", "._a.nii"]))))


def _delete(path, other, rng):
    path.unlink()


def _swap(path, other, rng):
    first = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(first)


def _reshape(path, other, rng):
    save(rng.integers(0, 5, rng.integers(0, 12, rng.integers(1, 6))).astype(np.int16), path)


def _retype(path, other, rng):
    dtype = [RGB, COMPLEX, np.float64, np.float32, np.uint8, np.int32][rng.integers(6)]
    values = rng.normal(size=SHAPE) * 10.0 ** rng.integers(-3, 4)
    save(np.zeros(SHAPE, RGB) if dtype is RGB else values.astype(np.int8).astype(dtype), path)


def _folder(path, other, rng):
    path.unlink()
    path.mkdir()


def _link(path, other, rng):
    path.unlink()
    path.symlink_to(str(rng.choice(["/dev/zero", "nowhere", ".", other.name])))


def _move(path, other, rng):
    inner = path.with_name(str(rng.choice(["deeper", "a.nii", "imagesTr"])))
    inner.mkdir(exist_ok=True)
    path.rename(inner / path.name)


DAMAGES = {
    function.__name__: function
    for function in (
        _flip_header, _flip_bytes, _truncate, _rename, _delete, _swap, _reshape, _retype, _folder, _link, _move,
    )
}  # fmt: skip


def as_nibabel(path: Path, dtype) -> np.ndarray:
    array = np.asarray(nib.load(path).dataobj, dtype)
    return array.reshape(array.shape[:3])


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return write_case(tmp_path_factory.mktemp("sound") / "BraTS20_Training_001", random_case(1))


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.filterwarnings("ignore")
def test_damaged_data_sets(sound, tmp_path, seed):
    rng = np.random.default_rng(seed)
    folder = Path(shutil.copytree(sound, tmp_path / "set" / sound.name))
    what = [damage(folder, rng) for _ in range(rng.integers(1, 3))]
    tracemalloc.start()
    line = read_all(tmp_path / "set")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(tmp_path / "set") in line or not line, what
    assert "\n" not in line
    assert peak < 60e6, what


def read_all(root: Path) -> str:
    """Reads the only case and compares it with nibabel's result. Returns the text of the DataError, if one is raised."""
    try:
        (case,), schema = find_cases(root, require_truth=False)
        images, affine = load_images(case)
        truth = load_truth(case, schema, images.shape[:3], affine)
    except DataError as error:
        return str(error)
    check_content(case, images, truth)
    return ""


def check_content(case, images, truth) -> None:
    """The array as nibabel reads it, whatever the order of the axes."""
    for index, path in enumerate(case.images.values()):
        np.testing.assert_array_equal(np.sort(images[..., index], None), np.sort(as_nibabel(path, np.float32), None))
    if truth is not None:
        np.testing.assert_array_equal(np.sort(truth, None), np.sort(np.rint(as_nibabel(case.truth, float)), None))
