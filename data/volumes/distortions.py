"""Random changes of a training sample, besides symmetries. They imitate other scanners, heads and patients.

    @distortion("noise", chance=0.15)
    def noise(sample, random): ...

Each distortion draws from a random stream of its own, so that adding one to a run changes no other. Intensities are changed only
inside the brain, where any channel differs from the background. The ranges are like nnU-Net's (Isensee et al., Nature
Methods 2021) and TorchIO (Perez-Garcia et al. 2021). `python -m experiments.look_at_brains --distorted` draws each.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import SimpleITK as sitk
from scipy import ndimage

from lms3d.data.errors import DataError

ELASTIC_POINTS, ELASTIC_SHARE = 7, 0.04
"""The number of control points per axis, and the largest displacement as a share of the axis."""
FIELD_STEP = 4  # voxels between the samples of a displacement field, which is linear between them
SMALLEST_SCALE, LARGEST_SCALE = 0.85, 1.2
BRIGHTNESS, CONTRAST = 0.2, 0.15
"""The largest change, up or down: in standard deviations of the channel, and as a share of its contrast."""
LARGEST_LOG_GAMMA = 0.35
LARGEST_NOISE = 0.15
"""The largest standard deviation of the noise, in standard deviations of the channel."""
BIAS_ORDER, LARGEST_BIAS = 3, 0.3
"""The degree of the polynomial whose exponential multiplies the intensities, and its largest coefficient."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A normalised sample, as a network sees it."""

    image: np.ndarray
    """The image, (A, B, C, channels) float32."""
    truth: np.ndarray
    """The label map, (A, B, C) uint8."""
    zero: np.ndarray
    """(channels,). image + zero is proportional to intensities above the background (0 in a brain scan, air in a CT)."""
    background: np.ndarray
    """The value of all voxels outside the brain, or beside the body, (channels,)."""

    @property
    def brain(self) -> np.ndarray:
        """The mask of the brain, or of the body, (A, B, C, 1) bool."""
        return np.asarray((self.image != self.background).any(axis=-1, keepdims=True))


Distort = Callable[[Sample, np.random.Generator], Sample]


@dataclass(frozen=True, kw_only=True)
class Distortion:
    """A registered distortion."""

    apply: Distort
    chance: float
    """The share of samples that it changes."""


DISTORTIONS: dict[str, Distortion] = {}


def distortion(name: str, *, chance: float) -> Callable[[Distort], Distort]:
    """A decorator that registers a distortion under a name for `--distort`."""

    def add(apply: Distort) -> Distort:
        DISTORTIONS[name] = Distortion(apply=apply, chance=chance)
        return apply

    return add


def distort(sample: Sample, names: Sequence[str], seed: int, number: int) -> Sample:
    """The sample after some distortions among `names`, in their order. The sample's number in the stream decides by chance
    which."""
    for name in names:
        random = np.random.default_rng([abs(seed), zlib.crc32(name.encode()), number])
        drawn = DISTORTIONS[name]
        if random.random() < drawn.chance:
            sample = drawn.apply(sample, random)
    return sample


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, or all of DISTORTIONS for ("all",). DataError for an unknown name."""
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
    """Applies smooth random displacements, which are zero at the border of the volume."""
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
    """Enlarges or shrinks the head, by the same factor along all axes, around the middle of the volume."""
    factor = float(np.exp(random.uniform(np.log(SMALLEST_SCALE), np.log(LARGEST_SCALE))))
    transform = sitk.ScaleTransform(3, [1 / factor] * 3)
    transform.SetCenter([(size - 1) / 2 for size in sample.truth.shape[::-1]])
    return _moved(sample, transform)


@distortion("intensity", chance=0.3)
def intensity(sample: Sample, random: np.random.Generator) -> Sample:
    """Changes brightness and contrast of each channel separately."""
    channels = sample.image.shape[-1:]
    gain = (1 + random.uniform(-CONTRAST, CONTRAST, channels)).astype(np.float32)
    shift = random.uniform(-BRIGHTNESS, BRIGHTNESS, channels).astype(np.float32)
    return _with_intensities(sample, sample.image * gain + shift)


@distortion("gamma", chance=0.3)
def gamma(sample: Sample, random: np.random.Generator) -> Sample:
    """Raises each channel's range to a power, and keeps its mean and standard deviation inside the brain."""
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
    """Adds Gaussian noise, with one random strength for all channels."""
    strength = np.float32(random.uniform(0, LARGEST_NOISE))
    return _with_intensities(
        sample, sample.image + strength * random.standard_normal(sample.image.shape, dtype=np.float32)
    )


@distortion("bias-field", chance=0.2)
def bias_field(sample: Sample, random: np.random.Generator) -> Sample:
    """Multiplies intensities by the exponential of a random polynomial of the position, the same for all channels."""
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
    """The sample with its image (linear) and truth (nearest) moved by `transform`. Voxels from outside the volume are background.

    At the border the scanner's intensities are blended with the background's 0, not z-scores, whose 0 is the mean of the brain.
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
    moved = sitk.GetArrayFromImage(sitk.Resample(image, transform, interpolator, 0.0))
    return np.reshape(moved, array.shape)  # SimpleITK drops the axis of a single channel
