"""Random changes of a training sample, besides symmetries: what other scanners, heads and patients would have looked like.

    @distortion("noise", chance=0.15)
    def noise(sample, random): ...

Each draws from a random stream of its own, so that one more in a run changes no other. Intensities are changed inside the brain
alone, where any channel differs from the background. The ranges are like those of nnU-Net (Isensee et al., Nature Methods 2021)
and TorchIO (Perez-Garcia et al. 2021). `python -m experiments.distortions` draws each.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import SimpleITK as sitk
from scipy import ndimage

from data.errors import DataError

ELASTIC_POINTS, ELASTIC_SHARE = 7, 0.04
"""Control points per axis, and the largest displacement as a share of the axis."""
FIELD_STEP = 4  # voxels between the samples of a displacement field; between them it is linear
SMALLEST_SCALE, LARGEST_SCALE = 0.85, 1.2
BRIGHTNESS, CONTRAST = 0.2, 0.15
"""In standard deviations of the channel, and as a share of its contrast; either way."""
LARGEST_LOG_GAMMA = 0.35
LARGEST_NOISE = 0.15
"""Standard deviation of the noise, in standard deviations of the channel."""
BIAS_ORDER, LARGEST_BIAS = 3, 0.3
"""Degree of the polynomial whose exponential multiplies the intensities, and its largest coefficient."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What is shown to a network, normalised."""

    image: np.ndarray
    """(A, B, C, channels) float32."""
    truth: np.ndarray
    """(A, B, C) uint8."""
    zero: np.ndarray
    """(channels,): mean / std of the normalisation. image + zero is in proportion to what the scanner gave."""
    background: np.ndarray
    """(channels,): the value of all voxels outside the brain."""

    @property
    def brain(self) -> np.ndarray:
        """(A, B, C, 1) bool."""
        return np.asarray((self.image != self.background).any(axis=-1, keepdims=True))


Distort = Callable[[Sample, np.random.Generator], Sample]


@dataclass(frozen=True, kw_only=True)
class Distortion:
    apply: Distort
    chance: float
    """Share of the samples that it changes."""


DISTORTIONS: dict[str, Distortion] = {}


def distortion(name: str, *, chance: float) -> Callable[[Distort], Distort]:
    """Decorator: registers a distortion under a name for `--distort`."""

    def add(apply: Distort) -> Distort:
        DISTORTIONS[name] = Distortion(apply=apply, chance=chance)
        return apply

    return add


def distort(sample: Sample, names: Sequence[str], seed: int, number: int) -> Sample:
    """The sample after those of `names` that its number in the stream draws, in their order."""
    for name in names:
        random = np.random.default_rng([abs(seed), zlib.crc32(name.encode()), number])
        one = DISTORTIONS[name]
        if random.random() < one.chance:
            sample = one.apply(sample, random)
    return sample


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, or all of DISTORTIONS for ("all",). DataError for an unknown one."""
    if tuple(names) == ("all",):
        return tuple(DISTORTIONS)
    for name in names:
        if name not in DISTORTIONS:
            raise DataError(
                f"--distort: found {name!r}; expected all, or a list of {', '.join(DISTORTIONS)}; choose among these"
            )
    return tuple(names)


@distortion("elastic", chance=0.2)
def elastic(sample: Sample, random: np.random.Generator) -> Sample:
    """Smooth random displacements, none at the border of the volume."""
    shape = sample.truth.shape
    largest = ELASTIC_SHARE * np.array(shape)
    points = random.uniform(-largest, largest, (ELASTIC_POINTS,) * 3 + (3,))
    for axis in range(3):
        points.swapaxes(0, axis)[[0, -1]] = 0
    coarse = [-(-size // FIELD_STEP) + 1 for size in shape]
    zoom = [new / ELASTIC_POINTS for new in coarse]
    field = np.stack([ndimage.zoom(points[..., axis], zoom, order=3) for axis in range(3)], axis=-1)
    image = sitk.GetImageFromArray(np.ascontiguousarray(field[..., ::-1], np.float64), isVector=True)
    image.SetSpacing([(size - 1) / (points - 1) for size, points in zip(shape[::-1], coarse[::-1], strict=True)])
    return _moved(sample, sitk.DisplacementFieldTransform(image))


@distortion("scale", chance=0.2)
def scale(sample: Sample, random: np.random.Generator) -> Sample:
    """A larger or smaller head, by the same factor along all axes, around the middle of the volume."""
    factor = float(np.exp(random.uniform(np.log(SMALLEST_SCALE), np.log(LARGEST_SCALE))))
    transform = sitk.ScaleTransform(3, [1 / factor] * 3)
    transform.SetCenter([(size - 1) / 2 for size in sample.truth.shape[::-1]])
    return _moved(sample, transform)


@distortion("intensity", chance=0.3)
def intensity(sample: Sample, random: np.random.Generator) -> Sample:
    """Brightness and contrast of each channel by itself."""
    channels = sample.image.shape[-1:]
    gain = (1 + random.uniform(-CONTRAST, CONTRAST, channels)).astype(np.float32)
    shift = random.uniform(-BRIGHTNESS, BRIGHTNESS, channels).astype(np.float32)
    return _with_intensities(sample, sample.image * gain + shift)


@distortion("gamma", chance=0.3)
def gamma(sample: Sample, random: np.random.Generator) -> Sample:
    """Each channel's range to a power; its mean and standard deviation inside the brain stay."""
    brain = sample.brain[..., 0]
    image = sample.image.copy()
    for index in range(image.shape[-1]):
        values = image[..., index][brain]
        low, extent, mean, std = values.min(), max(np.ptp(values), 1e-6), values.mean(), values.std()
        bent = ((values - low) / extent) ** np.exp(random.uniform(-LARGEST_LOG_GAMMA, LARGEST_LOG_GAMMA))
        image[..., index][brain] = (bent - bent.mean()) / max(bent.std(), 1e-6) * std + mean
    return _with_intensities(sample, image)


@distortion("noise", chance=0.15)
def noise(sample: Sample, random: np.random.Generator) -> Sample:
    """Gaussian, of one random strength for all channels."""
    strength = np.float32(random.uniform(0, LARGEST_NOISE))
    return _with_intensities(
        sample, sample.image + strength * random.standard_normal(sample.image.shape, dtype=np.float32)
    )


@distortion("bias-field", chance=0.2)
def bias_field(sample: Sample, random: np.random.Generator) -> Sample:
    """Intensities times the exponential of a random polynomial of the position, the same for all channels."""
    axes = np.meshgrid(
        *(np.linspace(-1, 1, size, dtype=np.float32) for size in sample.truth.shape), sparse=True, indexing="ij"
    )
    exponent: Any = np.zeros((), np.float32)
    for a in range(BIAS_ORDER + 1):
        for b in range(BIAS_ORDER + 1 - a):
            for c in range(BIAS_ORDER + 1 - a - b):
                if a + b + c:
                    coefficient = np.float32(random.uniform(-LARGEST_BIAS, LARGEST_BIAS))
                    exponent = exponent + coefficient * axes[0] ** a * axes[1] ** b * axes[2] ** c
    field = np.exp(exponent)[..., np.newaxis]
    zero = np.asarray(sample.zero, np.float32)
    return _with_intensities(sample, (sample.image + zero) * field - zero)  # the scanner's intensities are multiplied


def _with_intensities(sample: Sample, image: np.ndarray) -> Sample:
    image = np.where((sample.image == sample.background).all(axis=(0, 1, 2)), sample.background, image)
    return replace(sample, image=np.where(sample.brain, image, sample.background).astype(np.float32, copy=False))


def _moved(sample: Sample, transform: Any) -> Sample:
    """Image (linear) and truth (nearest) as `transform` moves them; what comes from outside is background.

    At the border it is the scanner's intensities that blend with the background's 0: a z-score of 0 is the mean of the brain.
    """
    brain, zero = sample.brain, np.asarray(sample.zero, np.float32)
    image = _resampled(np.where(brain, sample.image + zero, np.float32(0)), transform, sitk.sitkLinear)
    brain = _resampled(brain[..., 0].astype(np.uint8), transform, sitk.sitkNearestNeighbor)[..., np.newaxis] > 0
    return replace(
        sample,
        image=np.where(brain, image - zero, sample.background).astype(np.float32, copy=False),
        truth=_resampled(sample.truth, transform, sitk.sitkNearestNeighbor),
    )


def _resampled(array: np.ndarray, transform: Any, interpolator: int) -> np.ndarray:
    image = sitk.GetImageFromArray(np.ascontiguousarray(array), isVector=array.ndim == 4)
    return np.asarray(sitk.GetArrayFromImage(sitk.Resample(image, transform, interpolator, 0.0)))
