"""The cache has the right content, is built once (by one of two processes), is repaired, and is never silently wrong."""

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.brats import layouts
from lms3d.data.brats.preprocess import Preprocessing, cube
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError
from lms3d.data.volumes import cache, checksums, entries
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.data.volumes.checksums import Checksums
from lms3d.data.volumes.preprocess import to_grid
from tests.data.small_data import random_case, reopened, save, write_case


def build(root: Path, where: Path, resolution: int = 16, **options):
    cases, schema = layouts.find_cases(root, require_truth=False)
    return cache.build(cases, schema, cube(resolution), directory=where, **{"workers": 1, **options})


def test_content_is_that_of_the_preprocessing(data_set, small_cache):
    cases, schema = layouts.find_cases(data_set)
    for case in cases:
        images, affine = load_images(case)
        channels, truth, geometry = to_grid(images, load_truth(case, schema), affine, cube(16))
        grid = np.stack(list(channels), axis=-1)
        image = small_cache.image(case.id)
        assert image.dtype == np.float32
        np.testing.assert_allclose(image, grid, rtol=2**-11)
        np.testing.assert_array_equal(image == 0, grid == 0)
        np.testing.assert_array_equal(small_cache.truth(case.id), truth)
        assert small_cache.geometry(case.id) == geometry
        np.testing.assert_allclose(small_cache.entry(case.id)["mean"], image.mean((0, 1, 2)), rtol=1e-5)
        np.testing.assert_allclose(small_cache.entry(case.id)["std"], image.std((0, 1, 2)), rtol=1e-5)
    assert small_cache.ids == tuple(case.id for case in cases)
    assert small_cache.schema is schema


@given(st.floats(1e-30, 1e30), st.floats(-1e30, 1e30))
@settings(max_examples=50, deadline=None)
def test_half_floats_hold_any_scale(large, offset):
    grid = np.linspace(-abs(large), abs(large) + abs(offset), 64, dtype=np.float32).reshape(2, 2, 4, 4)
    stored = np.empty(grid.shape, np.float16)
    scale = np.array(
        [entries._to_float16(grid[..., index].copy(), stored[..., index]) for index in range(4)], np.float32
    )
    assert np.isfinite(stored).all()
    np.testing.assert_allclose(stored * scale, grid, rtol=2**-10, atol=np.abs(grid).max() * 2**-12)


def test_a_second_build_reads_no_voxel(data_set, small_cache, record):
    calls, progress = record
    stamps = {path: path.stat().st_mtime_ns for path in small_cache.directory.rglob("*")}
    again = build(data_set, small_cache.directory.parent, progress=progress)
    assert again == small_cache
    assert not calls
    assert {path: path.stat().st_mtime_ns for path in small_cache.directory.rglob("*")} == stamps


def test_copies_of_uncompressed_files_have_the_same_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "caches"))
    arrays = random_case(0)
    first = write_case(tmp_path / "a" / "BraTS20_Training_001", arrays, ending=".nii").parent
    before = checksums.data_fingerprint(layouts.find_cases(first).cases)
    copy = shutil.copytree(first, tmp_path / "b", copy_function=shutil.copyfile)
    for path in copy.rglob("*.nii"):
        os.utime(path, (1, 1))
    assert checksums.data_fingerprint(layouts.find_cases(copy).cases) == before
    (image,) = copy.rglob("*_t2.nii")
    content = bytearray(image.read_bytes())
    content[len(content) // 3] ^= 1  # between the samples of a large file, so only the whole tells
    image.write_bytes(content)
    os.utime(image, (2, 2))
    assert checksums.data_fingerprint(layouts.find_cases(copy).cases) != before


def test_a_checksum_is_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "caches"))
    path = tmp_path / "a.nii"

    def checksum(content, seconds):
        path.write_bytes(content)
        os.utime(path, (seconds, seconds))
        with Checksums([path]) as opened:
            return opened.of(path)

    first = checksum(b"one", 5)
    assert first == zlib.crc32(b"one")
    assert checksum(b"two", 5) == first, "it was not read again"
    assert checksum(b"two", 6) == zlib.crc32(b"two")
    (stored,) = (tmp_path / "caches" / "checksums").iterdir()
    stored.write_text("{")
    assert checksum(b"six", 6) == zlib.crc32(b"six")


def test_the_fingerprint_is_of_the_content(data_set, small_cache, tmp_path):
    shutil.copytree(data_set, tmp_path / "elsewhere")
    assert build(tmp_path / "elsewhere", tmp_path / "cache") == small_cache
    path = data_set / "BraTS20_Training_002" / "BraTS20_Training_002_t1.nii.gz"
    array = random_case(2)["t1"]
    array[9, 9, 9] += 1  # one voxel
    save(array, path)
    changed = build(data_set, tmp_path / "cache")
    assert changed.fingerprint != small_cache.fingerprint
    assert changed.directory != small_cache.directory


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read_now_is_no_other_data_set(data_set, monkeypatch, number):
    cases, _ = layouts.find_cases(data_set)
    broken, open_ = cases[1].files[2], Path.open

    def opened(path, *arguments, **options):
        if path == broken:
            raise OSError(number, os.strerror(number), str(path))
        return open_(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(DataError, match=rf"{broken.name}: found {os.strerror(number)}; expected a readable file"):
        checksums.data_fingerprint(cases)


@pytest.mark.parametrize("target", ["nowhere", None])
def test_a_link_to_nothing_or_to_itself_is_content(data_set, target):
    before = checksums.data_fingerprint(layouts.find_cases(data_set).cases)
    path = data_set / "BraTS20_Training_002" / "BraTS20_Training_002_t1.nii.gz"
    path.unlink()
    path.symlink_to(target or path.name)
    assert checksums.data_fingerprint(layouts.find_cases(data_set).cases) != before


def test_preprocessing_and_schema_have_folders_of_their_own(data_set, tmp_path):
    cases, schema = layouts.find_cases(data_set)
    built = [
        cache.build(cases[:1], one, how, directory=tmp_path, workers=1)
        for one, how in (
            (schema, cube(16)),
            (schema, cube(32)),
            (schema, cube(16, n4=True)),
            (schema, cube(16, anti_alias=True)),
            (schema, Preprocessing(shape=(16, 32, 16), stretched=False)),
            (schema, Preprocessing(shape=(16, 16, 16), stretched=False)),
            (SCHEMAS["brats2021"], cube(16)),
        )
    ]
    assert len({one.directory for one in built}) == 7
    assert len({one.fingerprint for one in built}) == 1


def test_parallel_and_serial_builds_agree(data_set, small_cache, tmp_path, record):
    calls, progress = record
    parallel = build(data_set, tmp_path / "other", workers=2, progress=progress)
    for path in sorted(small_cache.directory.rglob("*.*")):
        assert (parallel.directory / path.relative_to(small_cache.directory)).read_bytes() == path.read_bytes()
    assert calls == [(done, 5, "preprocessing to 16x16x16") for done in range(6)]


def test_cases_without_truth(data_set, tmp_path):
    (data_set / "BraTS20_Training_001" / "BraTS20_Training_001_seg.nii.gz").unlink()
    built = build(data_set, tmp_path / "c")
    assert built.truth("BraTS20_Training_001") is None
    assert built.truth("BraTS20_Training_002") is not None
    assert built.image("BraTS20_Training_001").shape == (16, 16, 16, 4)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_file_stops_the_build_and_the_good_ones_stay(data_set, tmp_path, workers):
    bad = data_set / "BraTS20_Training_005" / "BraTS20_Training_005_t2.nii.gz"
    content = bad.read_bytes()
    bad.write_bytes(content[:-50])
    with pytest.raises(DataError, match=r"BraTS20_Training_005_t2.nii.gz: found a file that cannot be read") as caught:
        build(data_set, tmp_path / "c", workers=workers)
    assert caught.value.exit_code == 2
    assert not list((tmp_path / "c").glob("*/index.json"))
    assert not list((tmp_path / "c").glob("*/.part-*"))


def test_a_killed_build_goes_on_where_it_stopped(data_set, small_cache, record):
    calls, progress = record
    (small_cache.directory / "index.json").unlink()
    shutil.rmtree(small_cache.directory / "BraTS20_Training_002")
    (small_cache.directory / ".part-1-BraTS20_Training_002").mkdir()
    build(data_set, small_cache.directory.parent, progress=progress)
    assert calls[-1] == (1, 1, "preprocessing to 16x16x16")
    assert not list(small_cache.directory.glob(".part-*"))


@pytest.mark.parametrize("name", ["image.npy", "truth.npy", "entry.json"])
def test_a_cut_entry_is_made_again(data_set, small_cache, name):
    path = small_cache.directory / "BraTS20_Training_003" / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    built = build(data_set, small_cache.directory.parent)
    assert path.read_bytes() == content
    assert built.image("BraTS20_Training_003").shape == (16, 16, 16, 4)


def test_a_flipped_bit_and_a_cut_file_are_found_when_read(small_cache):
    fresh = reopened(small_cache)
    path = small_cache.directory / "BraTS20_Training_003" / "image.npy"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"003/image.npy: found a damaged cache entry \(wrong checksum\).*delete the folder"
    ):
        fresh.image("BraTS20_Training_003")
    path.write_bytes(content[:-100])
    with pytest.raises(DataError, match=r"003/image.npy: found a damaged cache entry"):
        fresh.image("BraTS20_Training_003")
    np.save(path, np.zeros((8, 8, 8, 4), np.float16))
    with pytest.raises(DataError, match=r"found float16\[8, 8, 8, 4\]; expected float16\[16, 16, 16, 4\]"):
        fresh.image("BraTS20_Training_003")


def test_wrong_questions(small_cache, data_set, tmp_path):
    with pytest.raises(DataError, match="found no case 'absent'; expected one of 5 cases"):
        small_cache.image("absent")
    with pytest.raises(DataError, match="--resolution: found 20"):
        build(data_set, tmp_path, 20)
    with pytest.raises(DataError, match="cases: found none"):
        cache.build([], small_cache.schema, cube(16))
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Not a directory; expected a folder that can be written to"):
        build(data_set, tmp_path / "file")


@pytest.mark.parametrize("name", ["index.json", "skipped.csv", "BraTS20_Training_001.bad"])
def test_a_case_that_is_called_as_a_file_of_the_cache_is_refused(data_set, tmp_path, name):
    cases, schema = layouts.find_cases(data_set)
    cases = [cases[0], replace(cases[1], id=name)]
    with pytest.raises(DataError, match=f"002_t1.nii.gz: found a case called {name}, as a file of the cache is"):
        cache.build(cases, schema, cube(16), directory=tmp_path, workers=1)
    other = replace(cases[1], id=f"{name}.gz")
    assert cache.build([cases[0], other], schema, cube(16), directory=tmp_path, workers=1).ids[1:] == (f"{name}.gz",)


def test_a_cache_that_may_only_be_read_is_enough(data_set, small_cache, monkeypatch):
    monkeypatch.setattr(cache.files, "writable_directory", lambda path: pytest.fail("asked to write"))
    assert build(data_set, small_cache.directory.parent) == small_cache


def spoil(root: Path, number: int) -> Path:
    bad = root / f"BraTS20_Training_{number:03d}" / f"BraTS20_Training_{number:03d}_t2.nii.gz"
    bad.write_bytes(bad.read_bytes()[:-50])
    return bad


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_cases_can_be_left_out_and_are_listed(data_set, tmp_path, workers):
    bad = spoil(data_set, 5)
    built = build(data_set, tmp_path / "c", workers=workers, skip_bad=True)
    assert len(built.ids) == 4
    assert list(built.skipped) == ["BraTS20_Training_005"]
    assert str(bad) in built.skipped["BraTS20_Training_005"]
    listed = (built.directory / "skipped.csv").read_text().splitlines()
    assert listed[0] == "case,reason"
    assert listed[1].startswith("BraTS20_Training_005,")
    assert not list(built.directory.glob("*.bad"))
    assert build(data_set, tmp_path / "c") == built  # training uses the prepared volumes


def test_a_bad_case_in_a_folder_whose_name_is_no_utf8_is_listed(data_set, tmp_path):
    spoil(data_set, 5)
    root = data_set.rename(data_set.with_name(os.fsdecode(b"s\xe9t")))
    built = build(root, tmp_path / "c", skip_bad=True)
    assert list(built.skipped) == ["BraTS20_Training_005"]
    assert "s\\udce9t" in (built.directory / "skipped.csv").read_text()


def test_a_build_that_ends_while_it_clears_up_is_cleared_up_by_the_next(data_set, tmp_path, monkeypatch):
    """A folder with an index is finished, and is not cleaned again."""
    spoil(data_set, 5)

    unlink = Path.unlink

    def end_at_bad(path, **options):
        if path.name == "BraTS20_Training_005.bad":
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", end_at_bad)
        with pytest.raises(KeyboardInterrupt):
            build(data_set, tmp_path / "c", skip_bad=True)
    built = build(data_set, tmp_path / "c", skip_bad=True)
    assert list(built.skipped) == ["BraTS20_Training_005"]
    assert not list(built.directory.glob("*.bad"))


def test_a_mended_case_is_taken_in_again(data_set, tmp_path):
    bad = data_set / "BraTS20_Training_005" / "BraTS20_Training_005_t2.nii.gz"
    content = bad.read_bytes()
    spoil(data_set, 5)
    build(data_set, tmp_path / "c", skip_bad=True)
    bad.write_bytes(content)
    assert len(build(data_set, tmp_path / "c", skip_bad=True).ids) == 5


def test_where_every_case_is_bad_there_is_nothing_to_use(data_set, tmp_path):
    for number in range(1, 6):
        spoil(data_set, number)
    with pytest.raises(DataError, match=r"skipped.csv: found every case left out"):
        build(data_set, tmp_path / "c", skip_bad=True)


def race(root: Path, where: Path, barrier, results) -> None:
    barrier.wait(60)
    calls: list[tuple[int, int, str]] = []
    built = build(root, where, progress=lambda *call: calls.append(call))
    results.put(
        (sum(what.startswith("preprocessing") and done > 0 for done, _, what in calls), built.image(built.ids[0]).sum())
    )


def test_two_processes_start_together(tmp_path):
    for number in range(1, 4):
        write_case(tmp_path / "set" / f"BraTS20_{number:03d}", random_case(number, shape=(60, 60, 60)))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    racers = [context.Process(target=race, args=(tmp_path / "set", tmp_path / "c", barrier, results)) for _ in range(2)]
    for racer in racers:
        racer.start()
    (built_a, sum_a), (built_b, sum_b) = results.get(timeout=60), results.get(timeout=60)
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    assert built_a + built_b == 3  # every cube was made by one of the two
    assert sum_a == sum_b


def test_workers_start_without_tensorflow():
    code = (
        "import sys, lms3d.data.prepare, lms3d.data.phantoms.brains; "
        "from lms3d.data.volumes import distortions, normalise, symmetries; "
        "print('tensorflow' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    output = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    assert json.loads(output.strip().lower()) is False


def test_brains_that_a_box_cuts_off_are_told(data_set, tmp_path):
    cases, schema = layouts.find_cases(data_set)
    small, large = (
        cache.build(cases, schema, Preprocessing(shape=(n, 32, 16), stretched=False), directory=tmp_path, workers=1)
        for n in (16, 32)
    )
    assert small.cut_off() == list(small.ids)  # the brains have 17 x 19 x 14 voxels
    assert large.cut_off() == []


def test_what_was_left_out_stays_so_when_an_entry_is_made_again(data_set, tmp_path):
    spoil(data_set, 5)
    built = build(data_set, tmp_path / "c", skip_bad=True)
    (built.directory / "BraTS20_Training_001" / "image.npy").unlink()
    assert build(data_set, tmp_path / "c") == built
