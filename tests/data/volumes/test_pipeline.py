"""Batches: right content, an order that is a function of (seed, step), and no TensorFlow memory."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError, unwrap
from lms3d.data.stream import sample_position
from lms3d.data.volumes import normalise, pipeline
from lms3d.data.volumes.distortions import DISTORTIONS
from lms3d.data.volumes.presentation import Presentation
from lms3d.data.volumes.symmetries import allowed, apply
from lms3d.data.volumes.targets import Labels
from tests.data.small_data import reopened

LABELS = Labels(SCHEMAS["brats2020"])


@pytest.fixture
def fitted(small_cache):
    return normalise.fit("global", small_cache, small_cache.ids)


def first(dataset: tf.data.Dataset, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(itertools.islice(dataset.as_numpy_iterator(), count))


def test_a_batch_holds_what_the_functions_say(small_cache, fitted):
    ids = small_cache.ids[1:]
    dataset = pipeline.training_dataset(small_cache, LABELS, ids, fitted, batch_size=2, seed=7)
    image, target = dataset.element_spec
    assert (image.shape, image.dtype) == ((2, 16, 16, 16, 4), tf.float32)
    assert (target.shape, target.dtype) == ((2, 16, 16, 16, 3), tf.uint8)
    for step, (images, targets) in enumerate(first(dataset, 5)):
        for j in range(2):
            g = 2 * step + j
            case_id = ids[sample_position(7, len(ids), g)]
            k = pipeline.sample_symmetry(7, g, (16, 16, 16))
            expected = apply(normalise.image(fitted, small_cache, case_id), k)
            np.testing.assert_allclose(images[j], expected, rtol=1e-4, atol=1e-5)
            channels = LABELS.to_channels(apply(small_cache.truth(case_id), k))
            np.testing.assert_array_equal(targets[j], channels)


@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_a_resumed_stream_is_the_rest_of_the_first(small_cache, fitted, k):
    options = {"batch_size": 3, "seed": 11}
    whole = first(pipeline.training_dataset(small_cache, LABELS, small_cache.ids, fitted, **options), 12)
    rest = pipeline.training_dataset(small_cache, LABELS, small_cache.ids, fitted, first_sample=3 * k, **options)
    for a, b in zip(whole[k:], first(rest, 12 - k), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.parametrize(("size", "batch_size", "first_sample"), [(2, 1, 0), (3, 2, 0), (3, 2, 7)])
def test_ranks_together_see_what_one_sees(small_cache, fitted, size, batch_size, first_sample):
    """2 ranks x batch 1 = 1 rank x batch 2: sample i of the large batch is with rank i % size."""

    def stream(**options):
        return pipeline.training_dataset(
            small_cache,
            LABELS,
            small_cache.ids,
            fitted,
            seed=5,
            first_sample=first_sample,
            **options,
        )

    whole = first(stream(batch_size=size * batch_size), 4)
    parts = [first(stream(batch_size=batch_size, rank=rank, size=size), 4) for rank in range(size)]
    for step, (images, targets) in enumerate(whole):
        for i in range(size * batch_size):
            of_rank = parts[i % size][step]
            np.testing.assert_array_equal(of_rank[0][i // size], images[i])
            np.testing.assert_array_equal(of_rank[1][i // size], targets[i])


@given(st.integers(-3, 2**40), st.integers(1, 30), st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_every_pass_shows_every_case_once(seed, count, number):
    positions = [sample_position(seed, count, g) for g in range(number * count, (number + 1) * count)]
    assert sorted(positions) == list(range(count))


def test_passes_and_seeds_differ_and_all_symmetries_come():
    order = [[sample_position(seed, 20, g) for g in range(40)] for seed in (0, 1)]
    assert order[0][:20] != order[0][20:]
    assert order[0] != order[1]
    assert {pipeline.sample_symmetry(0, g, (16, 16, 16)) for g in range(600)} == set(range(48))
    assert {pipeline.sample_symmetry(0, g, (16, 32, 16)) for g in range(200)} == set(allowed((16, 32, 16)))


def test_without_augmentation_cubes_stay_upright(small_cache, fitted):
    dataset = pipeline.training_dataset(
        small_cache, LABELS, small_cache.ids, fitted, batch_size=1, seed=0, shown=Presentation(symmetries="none")
    )
    ((images, _),) = first(dataset, 1)
    case_id = small_cache.ids[sample_position(0, 5, 0)]
    np.testing.assert_allclose(images[0], normalise.image(fitted, small_cache, case_id), rtol=1e-4, atol=1e-5)


def test_patches_are_parts_of_the_case_and_follow_from_the_seed(small_cache, fitted):
    shown = Presentation(symmetries="none", patch=(8, 8, 8))

    def stream(**options):
        return pipeline.training_dataset(
            small_cache, LABELS, small_cache.ids, fitted, batch_size=1, seed=3, shown=shown, **options
        )

    seen = first(stream(), 12)
    for g, (images, targets) in enumerate(seen):
        case_id = small_cache.ids[sample_position(3, 5, g)]
        whole, truth = normalise.image(fitted, small_cache, case_id), small_cache.truth(case_id)
        parts = np.lib.stride_tricks.sliding_window_view(whole[..., 0], (8, 8, 8))
        (place,) = np.argwhere(np.isclose(parts, images[0, ..., 0], atol=1e-4).all(axis=(-3, -2, -1)))
        there = tuple(slice(start, start + 8) for start in place)
        np.testing.assert_allclose(images[0], whole[there], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(targets[0], LABELS.to_channels(truth[there]))
    for (a, _), (b, _) in zip(seen[5:], first(stream(first_sample=5), 7), strict=True):
        np.testing.assert_array_equal(a, b)
    shown = Presentation(patch=(32, 32, 32))
    with pytest.raises(DataError, match="--patch: found 32x32x32; expected at most the volume, 16x16x16"):
        stream()


def test_distortions_follow_from_seed_and_sample(small_cache, fitted):
    shown = Presentation(distortions=tuple(DISTORTIONS))
    whole, plain = (
        first(
            pipeline.training_dataset(small_cache, LABELS, small_cache.ids, fitted, batch_size=1, seed=3, shown=one), 10
        )
        for one in (shown, Presentation())
    )
    rest = pipeline.training_dataset(
        small_cache, LABELS, small_cache.ids, fitted, batch_size=1, seed=3, shown=shown, first_sample=4
    )
    for a, b in zip(whole[4:], first(rest, 6), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
    assert any((a[0] != b[0]).any() for a, b in zip(whole, plain, strict=True))


@pytest.mark.parametrize(
    ("batch_size", "sizes", "static"), [(1, [1] * 5, 1), (2, [2, 2, 1], None), (5, [5], 5), (7, [5], None)]
)
def test_validation_shows_every_case_in_order(small_cache, fitted, batch_size, sizes, static):
    dataset = pipeline.validation_dataset(small_cache, LABELS, small_cache.ids, fitted, batch_size=batch_size)
    assert dataset.element_spec[0].shape[0] == static
    assert int(dataset.cardinality()) == len(sizes)
    for _ in range(2):  # it can be gone through again
        batches = list(dataset.as_numpy_iterator())
        assert [len(images) for images, _ in batches] == sizes
        images = np.concatenate([images for images, _ in batches])
        for image, case_id in zip(images, small_cache.ids, strict=True):
            np.testing.assert_allclose(image, normalise.image(fitted, small_cache, case_id), rtol=1e-4, atol=1e-5)


def test_batches_take_no_memory_of_the_device(small_cache, fitted):
    # TensorFlow counts tensors from 256 KiB on: 2 MiB of images and 384 KiB of targets each.
    iterator = iter(pipeline.training_dataset(small_cache, LABELS, small_cache.ids, fitted, batch_size=32, seed=0))
    next(iterator)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    held = [next(iterator) for _ in range(4)]
    taken = tf.config.experimental.get_memory_info("CPU:0")["current"] - before
    assert taken < 0.1 * sum(tensor.numpy().nbytes for batch in held for tensor in batch)


def test_a_damaged_entry_is_named_through_tensorflow(small_cache, fitted):
    fresh = reopened(small_cache)
    for path in fresh.directory.glob("*/image.npy"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    dataset = pipeline.training_dataset(fresh, LABELS, fresh.ids, fitted, batch_size=1, seed=0)
    with pytest.raises(tf.errors.OpError) as caught:
        first(dataset, 1)
    assert "image.npy: found a damaged cache entry (wrong checksum)" in str(unwrap(caught.value))


def test_wrong_input(small_cache, fitted, data_set):
    with pytest.raises(ValueError, match="rank 2 of 2"):
        pipeline.training_dataset(small_cache, LABELS, small_cache.ids, fitted, batch_size=1, seed=0, rank=2, size=2)
    with pytest.raises(DataError, match="--batch-size: found 0"):
        pipeline.training_dataset(small_cache, LABELS, small_cache.ids, fitted, batch_size=0, seed=0)
    with pytest.raises(DataError, match="found no case to load"):
        pipeline.training_dataset(small_cache, LABELS, [], fitted, batch_size=1, seed=0)
    with pytest.raises(DataError, match="found no case 'other'"):
        pipeline.validation_dataset(small_cache, LABELS, ["other"], fitted, batch_size=1)
    entry = small_cache.entry(small_cache.ids[0])
    del entry["files"]["truth.npy"]
    with pytest.raises(DataError, match="found no label map; expected one for training and validation"):
        pipeline.training_dataset(small_cache, LABELS, small_cache.ids, fitted, batch_size=1, seed=0)
