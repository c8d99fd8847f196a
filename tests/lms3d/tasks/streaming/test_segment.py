"""A network's probabilities for a whole case: slab by slab, window by window, under symmetries."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lms3d
from lms3d import models
from lms3d.data.volumes import symmetries
from lms3d.errors import StorageError
from lms3d.tasks import inference
from lms3d.tasks.streaming import segment

SIDE = 16


@pytest.fixture(scope="module")
def model() -> Any:
    keras.utils.set_random_seed(0)
    return models.build("unet3d", input_shape=(SIDE, SIDE, SIDE, 4), filters=(2, 4, 4))


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(SIDE, SIDE, SIDE, 4)).astype(np.float32)


def reading(image: np.ndarray) -> Callable[[int, int], np.ndarray]:
    return lambda first, end: image[first:end]


def whole(network: Any, image: np.ndarray, scratch: Any, **how: Any) -> np.ndarray:
    """What `probabilities` finds, as an array."""
    with segment.probabilities(network, reading(image), image.shape[:3], scratch=scratch, **how) as found:
        return found.read((0, 0, 0), found.shape)


@pytest.mark.parametrize("slabs", ["off", "4/2"])
def test_a_streamed_network_says_what_it_says_as_a_whole(model, image, tmp_path, slabs):
    """Bit by bit, under the same plan; neither its input nor its output is whole if it has slabs."""
    lms = lms3d.LMS(slabs=slabs)
    expected = inference.predictor(model, (SIDE,) * 3, lms=lms)(image)
    lms.close()
    lms, calls = lms3d.LMS(slabs=slabs), []
    stream = inference.streamer(model, (SIDE,) * 3, lms=lms)

    def told(read: Any, write: Any) -> None:
        def writing(first: int, planes: np.ndarray) -> None:
            calls.append((first, len(planes)))
            write(first, planes)

        stream(lambda first, end: (calls.append((first, end)), read(first, end))[1], writing)

    np.testing.assert_array_equal(whole(told, image, tmp_path, channels=3), expected)
    largest = SIDE if slabs == "off" else SIDE // 4
    assert len(calls) >= 2 * SIDE // largest
    assert {(0, largest)} <= set(calls)
    assert max(end - first for first, end in calls) == largest
    lms.close()


@pytest.mark.parametrize("numbers", [(0,), (0, 1)])
def test_twice_as_many_slices_need_no_more_memory(tmp_path, numbers):
    """Arrays are counted as numpy allocates them, so the figures are the same on every machine."""
    area, patch, outputs = (64, 64), (32, 32, 32), 8
    said = np.zeros((*patch, outputs), np.float32)

    def peak(depth: int) -> int:
        def read(first: int, end: int) -> np.ndarray:
            return np.zeros((end - first, area[1], depth, 1), np.float32)

        tracemalloc.start()
        try:
            segment.probabilities(
                lambda _: said, read, (*area, depth), channels=outputs, scratch=tmp_path, patch=patch, numbers=numbers
            ).close()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(64)  # what is made once, such as the weights of a window
    peaks = {depth: peak(depth) for depth in (64, 128)}
    assert peaks[128] < 1.1 * peaks[64], (
        f"a whole map of the deeper one is {np.prod((*area, 128, outputs)) * 4:,} bytes: {peaks}"
    )


def test_tta_is_the_mean_over_all_symmetries(model, image, tmp_path):
    every = symmetries.allowed((SIDE,) * 3)
    run = inference.streamer(model, (SIDE,) * 3)
    found = whole(run, image, tmp_path, channels=2, numbers=every)
    turned = [
        symmetries.apply(model(symmetries.apply(image, k)[None]).numpy()[0], symmetries.inverse(k)) for k in every
    ]
    np.testing.assert_allclose(found, np.mean(turned, axis=0)[..., :2], atol=1e-5)


@given(st.data())
@settings(deadline=None, max_examples=15)
def test_windows_and_symmetries_of_a_network_that_looks_at_one_voxel(tmp_path_factory, data):
    """Its mean is what it says at once; the volume may be smaller than the window on some axes, or larger."""
    shape = tuple(data.draw(st.integers(3, 12)) for _ in range(3))
    side = data.draw(st.integers(2, 9))
    image = np.random.default_rng(1).random((*shape, 2), np.float32)
    numbers = data.draw(st.sampled_from([(0,), (3, 5), symmetries.allowed((side,) * 3)]))
    found = whole(
        lambda part: part[..., :1] * 2, image, tmp_path_factory.getbasetemp(), channels=1, patch=(side,) * 3, numbers=numbers
    )  # fmt: skip
    np.testing.assert_allclose(found, image[..., :1] * 2, rtol=1e-5)


def test_around_a_small_volume_are_its_smallest_values(tmp_path):
    image = np.full((4, 6, 6, 2), (3.0, -5.0), np.float32)
    image[1, 1, 1] = (-1.0, 7.0)
    seen = []
    whole(lambda part: (seen.append(part), part)[1], image, tmp_path, channels=2, patch=(6, 6, 6))
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0][0, 0, 0], (-1, -5))
    np.testing.assert_array_equal(seen[0][1:5], image)


def test_the_middle_of_a_window_counts_most(tmp_path):
    """The window whose middle is nearer has more weight in an overlap."""
    calls = iter([0.0, 1.0])

    def network(part: np.ndarray) -> np.ndarray:
        return np.full((*part.shape[:3], 1), next(calls), np.float32)

    found = whole(network, np.zeros((12, 8, 8, 1), np.float32), tmp_path, channels=1, patch=(8, 8, 8))
    middle = found[:, 4, 4, 0]
    assert (np.diff(middle) >= 0).all()
    assert middle[4] < 0.1
    assert middle[7] > 0.9


def test_an_error_of_the_disk_ends_a_streamed_network_in_its_own_words(model, image, tmp_path):
    run = inference.streamer(model, (SIDE,) * 3)

    def failing(first: int, planes: np.ndarray) -> None:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError, match=r"^the disk is full$"):
        run(reading(image), failing)
    np.testing.assert_allclose(  # and it can be used again
        whole(run, image, tmp_path, channels=3), model(image[None]).numpy()[0], rtol=1e-5
    )
