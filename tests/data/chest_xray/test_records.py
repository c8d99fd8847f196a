"""Shards: real TFRecords, whole or absent, made once, resumable, and read by offset."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.chest_xray import collection, png, records, shards, tfrecord
from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.errors import DataError
from tests.data.small_radiographs import file_of, many, write_set

ROOT = Path(__file__).parents[3]


@pytest.fixture
def small_set(tmp_path):
    return write_set(tmp_path / "set", many(20))


@pytest.fixture
def eights(monkeypatch):
    """Shards of eight images, so that small sets have several."""
    monkeypatch.setattr(shards, "SHARD_IMAGES", 8)


def build(root, tmp_path, **options):
    options = {"directory": tmp_path / "cache", "workers": 1, **options}
    return shards.build(collection.find_images(root), 32, **options)


def shard_files(index):
    return sorted(index.directory.glob("*.tfrecord"))


@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(0, 2**40), max_size=20))
@settings(max_examples=30, deadline=None)
def test_tensorflow_reads_what_is_written_without_it(tmp_path_factory, strings, numbers):
    path = tmp_path_factory.mktemp("records") / "x.tfrecord"
    path.write_bytes(b"".join(tfrecord.record(tfrecord.example({"n": numbers, "s": s})) for s in strings))
    read = [tf.train.Example.FromString(data) for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    assert [example.features.feature["s"].bytes_list.value[0] for example in read] == strings
    assert all(list(example.features.feature["n"].int64_list.value) == numbers for example in read)


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="found -1"):
        tfrecord.example({"n": [-1]})


def test_a_shard_holds_every_image_once_with_its_labels(small_set, tmp_path, eights):
    index = build(small_set, tmp_path)
    found = collection.find_images(small_set).images
    assert sorted(name for part in index.parts.values() for name in part.names) == sorted(found)
    for part in index.parts.values():
        stored = iter(tf.data.TFRecordDataset(part.files).as_numpy_iterator())
        for number, name in enumerate(part.names):
            feature = tf.train.Example.FromString(next(stored)).features.feature
            pixels = png.read_grey(found[name].path, 32)
            np.testing.assert_array_equal(part.image(number), pixels)
            assert feature["image"].bytes_list.value[0] == pixels.tobytes()
            assert feature["name"].bytes_list.value[0].decode() == name
            assert feature["patient"].bytes_list.value[0].decode() == found[name].patient == part.patients[number]
            present = tuple(f for f, there in zip(FINDINGS, part.labels[number], strict=True) if there)
            assert present == found[name].findings
            assert list(feature["labels"].int64_list.value) == part.labels[number].tolist()
        assert next(stored, None) is None


def test_names_and_sizes_of_shards(small_set, tmp_path, eights):
    index = build(small_set, tmp_path)
    training = index.parts["training"]
    count = -(-len(training) // 8)
    assert [Path(file).name for file in training.files] == [
        f"training-{k:05d}-of-{count:05d}.tfrecord" for k in range(count)
    ]
    assert [len(shard.names) for shard in training.shards[:-1]] == [8] * (count - 1)
    assert index.directory.name == f"{index.directory.name.split('-')[0]}-32"
    assert training.names != tuple(sorted(training.names))  # dealt at random; the others are in order
    assert index.parts["test"].names == tuple(sorted(index.parts["test"].names))


def test_a_shard_has_256_images():
    assert shards.SHARD_IMAGES == 256


def test_several_processes_write_the_same_bytes(small_set, tmp_path, eights):
    one = build(small_set, tmp_path)
    two = build(small_set, tmp_path, directory=tmp_path / "other", workers=2)
    assert [path.name for path in shard_files(one)] == [path.name for path in shard_files(two)]
    for a, b in zip(shard_files(one), shard_files(two), strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_a_second_build_makes_nothing(small_set, tmp_path, monkeypatch):
    first = build(small_set, tmp_path)
    monkeypatch.setattr(shards, "write_shard", None)
    assert build(small_set, tmp_path).parts == first.parts


def test_another_size_seed_or_content_has_another_folder(small_set, tmp_path):
    found = collection.find_images(small_set)
    places = {build(small_set, tmp_path).directory, build(small_set, tmp_path, seed=1).directory}
    places.add(shards.build(found, 40, directory=tmp_path / "cache", workers=1).directory)
    table = small_set / "Data_Entry_2017.csv"
    table.write_text(table.read_text().replace("Hernia", "Mass"))
    places.add(build(small_set, tmp_path).directory)
    assert len(places) == 4


def test_a_killed_build_goes_on_where_it_stopped(small_set, tmp_path, monkeypatch, eights):
    write, calls = shards.write_shard, []

    def killed_at_the_third(*arguments):
        if len(calls) == 2:
            (arguments[0].parent / ".part-1-x.tfrecord").write_bytes(b"half")
            raise KeyboardInterrupt
        calls.append(arguments[0].name)
        write(*arguments)

    monkeypatch.setattr(shards, "write_shard", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        build(small_set, tmp_path)
    (directory,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    with pytest.raises(DataError, match=r"index.json: found No such file or directory"):
        records.open_index(directory)
    written: list[str] = []
    monkeypatch.setattr(shards, "write_shard", lambda *a: (written.append(a[0].name), write(*a)))
    index = build(small_set, tmp_path)
    assert not set(written) & set(calls)
    assert len(written) + len(calls) == len(shard_files(index))
    assert not list(directory.glob(".part-*"))


def test_a_shard_of_the_wrong_size_is_made_again(small_set, tmp_path):
    index = build(small_set, tmp_path)
    path = shard_files(index)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert build(small_set, tmp_path).directory == index.directory
    assert path.read_bytes() == whole


def test_a_corrupted_shard_is_named_when_it_is_first_read(small_set, tmp_path):
    index = build(small_set, tmp_path)
    path = Path(index.parts["training"].files[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = records.open_index(index.directory)
    expected = (
        f"{path}: found a damaged shard (wrong checksum); expected what was written; delete this file and run again"
    )
    with pytest.raises(DataError) as caught:
        again.parts["training"].image(0)
    assert str(caught.value) == expected
    again.parts["test"].image(0)  # the others are as they were
    path.unlink()  # the advice works
    build(small_set, tmp_path).parts["training"].image(0)


def test_a_bad_image_stops_the_build_or_is_left_out(small_set, tmp_path, eights):
    whole = build(small_set, tmp_path, directory=tmp_path / "whole")
    victim = whole.parts["training"].names[9]
    path = file_of(small_set, victim)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # its size and end are as before: the same data set, as far as names go
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{victim}: found a file that cannot be read"):
        build(small_set, tmp_path)
    index = build(small_set, tmp_path, skip_bad=True)
    assert [problem.image for problem in index.skipped] == [victim]
    assert "cannot be read" in index.skipped[0].line
    assert victim in (index.directory / "skipped.csv").read_text()
    for sound, short in zip(shard_files(whole), shard_files(index), strict=True):
        if sound.name.startswith("training-00001"):
            assert short.stat().st_size < sound.stat().st_size
        else:
            assert short.read_bytes() == sound.read_bytes()
    assert set(whole.parts["training"].names) - set(index.parts["training"].names) == {victim}
    assert index.fingerprint != whole.fingerprint
    assert build(small_set, tmp_path).skipped == index.skipped  # training takes the prepared files


def test_a_part_with_nothing_left_is_refused(tmp_path):
    root = write_set(tmp_path / "set", many(8), test=["00000004_000.png", "00000004_001.png"])
    for name in ("00000004_000.png", "00000004_001.png"):
        file_of(root, name).write_bytes(b"")
    with pytest.raises(DataError, match="found no sound image for test"):
        build(root, tmp_path, skip_bad=True)


def test_a_patient_in_two_parts_is_refused_when_shards_are_opened(small_set, tmp_path):
    index = build(small_set, tmp_path)
    contents = Path(index.parts["test"].files[0]).with_suffix(".json")
    stolen = index.parts["training"].patients[0]
    contents.write_text(contents.read_text().replace(f'"{index.parts["test"].patients[0]}"', f'"{stolen}"'))
    with pytest.raises(DataError, match=f"found patient {stolen} in training and in test"):
        records.open_index(index.directory)


def test_workers_need_no_tensorflow():
    names = "lms3d.data.chest_xray.shards, lms3d.data.phantoms.chests, lms3d.data.prepare"
    code = f"import sys, {names}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
