"""Batches of radiographs: three pipelines give the same content, the order is exact if promised, and each stage has its reason."""

import itertools
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lms3d.data import stream
from lms3d.data.chest_xray import collection, pipeline, records, shards
from lms3d.data.errors import DataError, unwrap
from lms3d.experiments.feeding import orders, training_rank
from lms3d.ranks.world import World
from lms3d.tasks.chexnet.task import ChexnetMaterial
from tests.data.small_radiographs import many, write_set

N = 32
ORDERS = orders.ORDERS.values()
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Shards of eight images: 56 of 28 patients for training."""
    place = tmp_path_factory.mktemp("images")
    root = write_set(place / "set", many(40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_IMAGES", 8)
        return shards.build(collection.find_images(root), N, directory=place / "cache", workers=1)


@pytest.fixture
def index(built, tmp_path):
    """A copy of the shards that a test may damage."""
    return records.open_index(shutil.copytree(built.directory, tmp_path / built.directory.name))


def first(dataset: tf.data.Dataset, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(itertools.islice(dataset.as_numpy_iterator(), count))


def normalised(grey: np.ndarray) -> np.ndarray:
    return (grey[..., None] / 255 - MEAN) / STD


def recognise(part: records.Part, images: np.ndarray) -> list[tuple[int, bool]]:
    """(number of each image in the part, whether it is mirrored)."""
    known = {part.image(k)[:, ::s].tobytes(): (k, s < 0) for k in range(len(part)) for s in (1, -1)}
    grey = np.rint((images[..., 0] * STD[0] + MEAN[0]) * 255).astype(np.uint8)
    return [known[image.tobytes()] for image in grey]


@pytest.mark.parametrize("make", ORDERS)
def test_a_batch_holds_normalised_images_and_their_labels(index, make):
    part = index.parts["training"]
    dataset = make(part, batch_size=4, seed=3)
    image, labels = dataset.element_spec
    assert (image.shape, image.dtype) == ((4, N, N, 3), tf.float32)
    assert (labels.shape, labels.dtype) == ((4, 14), tf.float32)
    mirrored = []
    for images, targets in first(dataset, 30):
        for image, target, (number, mirror) in zip(images, targets, recognise(part, images), strict=True):
            grey = part.image(number)
            np.testing.assert_allclose(image, normalised(grey[:, ::-1] if mirror else grey), atol=1e-5)
            np.testing.assert_array_equal(target, part.labels[number])
            mirrored.append(mirror)
    assert 0.3 < np.mean(mirrored) < 0.7


@pytest.mark.parametrize("make", ORDERS)
def test_a_pass_shows_every_image_once_and_passes_differ(index, make):
    part = index.parts["training"]
    assert len(part) == 56
    batches = first(make(part, batch_size=8, seed=0), 14)
    shown = [number for images, _ in batches for number, _ in recognise(part, images)]
    assert sorted(shown[:56]) == sorted(shown[56:]) == list(range(56))
    assert shown[:56] != shown[56:]
    assert shown[:56] != list(range(56))


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_share_the_images_of_a_pass(index, order):
    part = index.parts["training"]
    seen = Counter()
    for rank in range(7):  # seven shards
        for images, _ in first(order(part, batch_size=4, seed=0, rank=rank, size=7), 2):
            seen.update(number for number, _ in recognise(part, images))
    assert seen == dict.fromkeys(range(56), 1)


def test_the_old_order_reads_the_files_of_all_ranks_and_the_new_one_its_own(index):
    part = index.parts["training"]
    for file in part.files[1::2]:
        Path(file).unlink()
    assert len(first(orders.new_order(part, batch_size=4, seed=0, rank=0, size=2), 9)) == 9
    with pytest.raises(tf.errors.NotFoundError):
        first(orders.old_order(part, batch_size=4, seed=0, rank=0, size=2), 9)


def test_training_calls_what_the_study_measures_as_the_best_order(index, monkeypatch):
    material = ChexnetMaterial(index=index, batch_size=4, validation_batch_size=4, seed=0, augment=True, described={})
    asked = {"shards": str(index.directory), "batch_size": 4}
    measured = first(training_rank._dataset("best", asked, World()), 3)
    for (a, x), (b, y) in zip(first(material.training(0, World()), 3), measured, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(x, y)
    monkeypatch.setattr(pipeline, "training_dataset", lambda *_, **__: "called")
    assert material.training(0, World()) == training_rank._dataset("best", asked, World()) == "called"


def test_more_ranks_than_files(index):
    part = index.parts["validation"]
    assert len(part.files) == 1
    with pytest.raises(DataError, match="found 1 shards for 2 ranks; expected at least one for each"):
        orders.new_order(part, batch_size=1, seed=0, size=2)
    assert len(first(pipeline.training_dataset(part, batch_size=1, seed=0, rank=1, size=2), 3)) == 3


def test_the_exact_order_is_what_the_functions_say(index):
    part = index.parts["training"]
    for step, (images, _) in enumerate(first(pipeline.training_dataset(part, batch_size=5, seed=9), 25)):
        samples = range(5 * step, 5 * step + 5)
        expected = [(stream.sample_position(9, 56, g), pipeline.sample_flip(9, g)) for g in samples]
        assert recognise(part, images) == expected


@pytest.mark.parametrize("k", [0, 1, 7, 60])
def test_a_resumed_stream_is_the_rest_of_the_first(index, k):
    part, options = index.parts["training"], {"batch_size": 3, "seed": 11}
    whole = np.concatenate([images for images, _ in first(pipeline.training_dataset(part, **options), 30)])
    rest = first(pipeline.training_dataset(part, first_sample=k, **options), 10)
    np.testing.assert_array_equal(np.concatenate([images for images, _ in rest]), whole[k : k + 30])


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_together_see_what_one_rank_with_a_larger_batch_sees(index, size):
    part, options = index.parts["training"], {"seed": 2, "first_sample": 5}
    whole = first(pipeline.training_dataset(part, batch_size=4 * size, **options), 12)
    ranks = [
        first(pipeline.training_dataset(part, batch_size=4, rank=rank, size=size, **options), 12)
        for rank in range(size)
    ]
    for (images, labels), *shares in zip(whole, *ranks, strict=True):
        for rank, (share, targets) in enumerate(shares):
            np.testing.assert_array_equal(share, images[rank::size])
            np.testing.assert_array_equal(targets, labels[rank::size])


def test_without_augmentation_nothing_is_mirrored(index):
    part = index.parts["training"]
    for images, _ in first(pipeline.training_dataset(part, batch_size=8, seed=0, augment=False), 7):
        assert not any(mirror for _, mirror in recognise(part, images))


@pytest.mark.parametrize(("batch_size", "sizes", "static"), [(4, [4, 4], 4), (5, [5, 3], None), (9, [8], None)])
def test_validation_shows_every_image_in_order(index, batch_size, sizes, static):
    part = index.parts["validation"]
    dataset = pipeline.validation_dataset(part, batch_size=batch_size)
    assert dataset.element_spec[0].shape[0] == static
    assert int(dataset.cardinality()) == len(sizes)
    for _ in range(2):  # it can be gone through again
        batches = list(dataset.as_numpy_iterator())
        assert [len(images) for images, _ in batches] == sizes
        shown = [each for images, _ in batches for each in recognise(part, images)]
        assert shown == [(number, False) for number in range(len(part))]
        np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), part.labels)


def test_validation_is_dealt_out_and_nobody_goes_empty(index):
    part = index.parts["validation"]
    shown = [
        [number for images, _ in dataset.as_numpy_iterator() for number, _ in recognise(part, images)]
        for dataset in (pipeline.validation_dataset(part, batch_size=2, rank=rank, size=10) for rank in range(10))
    ]
    assert shown == [[k] for k in range(8)] + [[0], [0]]


def test_a_corrupted_shard_is_named_through_tensorflow(index):
    part = index.parts["training"]
    path = Path(part.files[3])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(tf.errors.OpError) as caught:
        first(pipeline.training_dataset(part, batch_size=8, seed=0), 7)
    assert str(unwrap(caught.value)).startswith(f"{path}: found a damaged shard")
    for order in (orders.old_order, orders.new_order):
        with pytest.raises(tf.errors.DataLossError):
            first(order(part, batch_size=8, seed=0), 7)


def test_wrong_input(index):
    part = index.parts["training"]
    for make in (pipeline.training_dataset, orders.new_order):
        with pytest.raises(DataError, match="--batch-size: found 0"):
            make(part, batch_size=0, seed=0)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        pipeline.training_dataset(part, batch_size=1, seed=0, rank=2, size=2)
