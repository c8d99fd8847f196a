"""Batches of volumes for Keras, from a cache: plain `tf.data.Dataset`s with static shapes, in the order of `lms3d.data.stream`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lms3d.data import stream
from lms3d.data.errors import DataError
from lms3d.data.volumes import normalise, patches, symmetries
from lms3d.data.volumes.cache import Cache
from lms3d.data.volumes.distortions import Sample, distort
from lms3d.data.volumes.geometry import Box, Shape
from lms3d.data.volumes.normalise import Normalisation
from lms3d.data.volumes.presentation import Presentation
from lms3d.data.volumes.targets import Targets

_SYMMETRY, _PATCH = 1, 2  # the random streams of a seed; see `lms3d.data.stream`


def training_dataset(
    cache: Cache,
    targets: Targets,
    ids: Sequence[str],
    normalisation: Normalisation,
    *,
    batch_size: int,
    seed: int,
    first_sample: int = 0,
    rank: int = 0,
    size: int = 1,
    shown: Presentation | None = None,
) -> tf.data.Dataset:
    """The endless stream of (image (B, A, B, C, channels) float32, target (B, A, B, C, outputs) uint8).

    See `stream.training_stream`.
    """
    batches = _Batches(cache, targets, ids, normalisation, batch_size, shown or Presentation(), seed)
    return stream.training_stream(
        len(ids), batches.load, batches.signature, lambda _, g: g + 1,
        batch_size=batch_size, seed=seed, first_sample=first_sample, rank=rank, size=size,
    )  # fmt: skip


def validation_dataset(
    cache: Cache, targets: Targets, ids: Sequence[str], normalisation: Normalisation, *, batch_size: int
) -> tf.data.Dataset:
    """The whole cases in the order of `ids`, once, as (image, target) batches; see `stream.single_pass`."""
    batches = _Batches(cache, targets, ids, normalisation, batch_size, Presentation(), 0)
    return stream.single_pass(range(len(ids)), batches.load, batches.signature, batch_size)


def sample_symmetry(seed: int, g: int, shape: Shape, which: str = "all") -> int:
    """The number of the symmetry under which sample g of the stream is shown."""
    choices = symmetries.allowed(shape, which)
    return choices[int(np.random.default_rng([abs(seed), _SYMMETRY, g]).integers(len(choices)))]


def require_truth(cache: Cache, ids: Sequence[str]) -> None:
    """DataError for a case without truth."""
    for case_id in ids:
        if "truth.npy" not in cache.entry(case_id)["files"]:
            raise DataError(
                f"case {case_id}: found no label map; expected one for training and validation; give the folder of the training "
                "set"
            )


class _Batches:
    """Batches of some cases of a cache. DataError if a case has no truth."""

    def __init__(
        self, cache: Cache, targets: Targets, ids: Sequence[str], normalisation: Normalisation, batch_size: int,
        shown: Presentation, seed: int,
    ) -> None:  # fmt: skip
        stream.require_batch(batch_size, "1 is usual for whole volumes")
        if not ids:
            raise DataError(f"{cache.directory}: found no case to load; expected at least one; check the split")
        require_truth(cache, ids)
        if shown.patch and cache.preprocessing.shape:
            patches.check_patch(shown.patch, cache.shape)
        self.cache, self.targets, self.ids, self.normalisation = cache, targets, list(ids), normalisation
        self.shown, self.seed = shown, seed
        self.shape = shown.patch or cache.shape

    def signature(self, batch_size: int | None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        channels = len(self.targets.names)
        return (
            tf.TensorSpec((batch_size, *self.shape, len(self.cache.channels)), tf.float32),
            tf.TensorSpec((batch_size, *self.shape, channels), tf.uint8),
        )

    def load(self, positions: Sequence[int], numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The normalised images, (B, *shape, channels) float32, and the targets, (B, *shape, outputs) uint8.

        numbers: g + 1 for sample g of the training stream, 0 for an unchanged case.
        """
        count = len(positions)
        images = stream.aligned_empty((count, *self.shape, len(self.cache.channels)), np.float32)
        targets = stream.aligned_empty((count, *self.shape, len(self.targets.names)), np.uint8)
        for image, target, position, number in zip(images, targets, positions, numbers, strict=True):
            truth = self._show(self.ids[position], number, image)
            target[:] = self.targets.to_channels(truth)
        return images, targets

    def _show(self, case_id: str, number: int, image: np.ndarray) -> np.ndarray:
        """Writes the image of a case to `image`. Returns its truth."""
        truth = self.cache.truth(case_id)
        assert truth is not None  # `__init__` checks it
        stored, scale = self.cache.stored_image(case_id)
        if self.shown.patch:
            box = self._patch(truth, number, self.shown.patch)
            stored, truth = box.crop(stored, patches.smallest), box.crop(truth)
        k = sample_symmetry(self.seed, number - 1, self.shape, self.shown.symmetries) if number else 0
        # The symmetry comes first, as a view of the stored half floats, so that its strided read is the only copy.
        stored, truth = symmetries.apply(stored, k), symmetries.apply(truth, k)
        entry = self.cache.entry(case_id)
        normalise.apply(self.normalisation, stored, scale, entry, image)
        if number and self.shown.distortions:
            background = normalise.background(self.normalisation, entry)
            mean, std = self.normalisation.figures(entry)
            zero = mean / std if self.normalisation.inside_brain else -background
            sample = Sample(image=image, truth=truth, zero=zero, background=background)
            sample = distort(sample, self.shown.distortions, self.seed, number - 1)
            image[...], truth = sample.image, sample.truth
        return truth

    def _patch(self, truth: np.ndarray, number: int, patch: Shape) -> Box:
        foreground = self.targets.schema.foreground(truth)
        random = np.random.default_rng([abs(self.seed), _PATCH, number - 1])
        return patches.random_patch(foreground, patch, random, evenly=self.shown.evenly)
