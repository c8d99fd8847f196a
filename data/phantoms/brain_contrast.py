"""Turns tissues into four modalities: contrasts, structures that only look like tumour, and the scanner's faults.

Everything works on the voxels inside the brain, as vectors (V,), because a brain fills only a sixth of its grid.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from lms3d.data.brats.schema import CHANNELS
from lms3d.data.phantoms.brain_anatomy import Brain
from lms3d.data.phantoms.brain_tumour import ENHANCING, NECROSIS, OEDEMA
from lms3d.data.phantoms.exact import blur, exp, normal, normals, smooth_field

INTENSITIES = {
    "t1": {"grey": 0.75, "fluid": 0.3, "oedema": 0.75, "necrosis": 0.5, "enhancing": 0.7},
    "t1ce": {"grey": 0.8, "fluid": 0.3, "oedema": 0.75, "necrosis": 0.45, "enhancing": 1.6},
    "flair": {"grey": 1.2, "fluid": 0.4, "oedema": 1.9, "necrosis": 1.1, "enhancing": 1.6},
    "t2": {"grey": 1.3, "fluid": 2.6, "oedema": 2.0, "necrosis": 2.2, "enhancing": 1.6},
}
"""Modality -> tissue -> intensity, where white matter has 1."""

_NOISE = 0.05  # of white matter
_BIAS = 0.12  # the standard deviation of the logarithm of the bias field
_GAIN = (400.0, 0.12)  # the median intensity of white matter, and the standard deviation of its logarithm


def render(rng: np.random.Generator, brain: Brain, labels: np.ndarray, spacing_mm: float) -> np.ndarray:
    """The images, (4, X, Y, Z) int16 in the order of CHANNELS: exactly zero outside the brain, and at least 1 inside."""
    inside, shape = brain.mask, brain.mask.shape

    def field(over_mm: float) -> np.ndarray:
        return smooth_field(rng, shape, max(1.5, over_mm / spacing_mm))[inside]

    tissue = {name: getattr(brain, name)[inside] for name in ("white", "grey", "fluid", "deep")}
    shares = _tumour_shares(labels, inside, spacing_mm)
    shares[OEDEMA] *= np.clip(0.65 + 0.15 * field(12) + 0.4 * _nearness(labels, inside, spacing_mm), 0.4, 1)
    mimics = _mimics(rng, tissue, field)
    detail = {label: field(6) for label in shares}
    images = np.zeros((len(CHANNELS), *shape), np.int16)
    for index, channel in enumerate(CHANNELS):
        level = {name: value * exp(normal(rng, 0, 0.06)) for name, value in INTENSITIES[channel].items()}
        signal = (
            tissue["white"] + level["grey"] * tissue["grey"] * (1 + 0.05 * field(9)) + level["fluid"] * tissue["fluid"]
        )
        signal = _with_mimics(signal, channel, level, mimics)
        for label, name, variation in (
            (OEDEMA, "oedema", 0.05),
            (NECROSIS, "necrosis", 0.15),
            (ENHANCING, "enhancing", 0.12),
        ):
            signal += shares[label] * (level[name] * (1 + variation * detail[label]) - signal)
        signal *= exp(_BIAS * field(80))
        signal += _NOISE * normals(rng, signal.shape)
        gain = _GAIN[0] * exp(normal(rng, 0, _GAIN[1]))
        images[index][inside] = np.clip(np.rint(gain * signal), 1, np.iinfo(np.int16).max)
    return images


def _tumour_shares(labels: np.ndarray, inside: np.ndarray, spacing_mm: float) -> dict[int, np.ndarray]:
    """Label -> its share of each voxel, (V,). Borders are blurred over about a voxel, as by a scanner."""
    width = 0.8 / spacing_mm
    return {label: blur((labels == label).astype(np.float32), width)[inside] for label in (OEDEMA, NECROSIS, ENHANCING)}


def _nearness(labels: np.ndarray, inside: np.ndarray, spacing_mm: float) -> np.ndarray:
    """The nearness of the tumour core, (V,): oedema is strongest beside the core and fades away from it."""
    step = 3  # the field is smooth, so the distance on a coarse grid is enough, and 27 times cheaper
    coarse = np.isin(labels[::step, ::step, ::step], (NECROSIS, ENHANCING))
    if not coarse.any():
        return np.zeros(int(np.count_nonzero(inside)), np.float32)
    near = exp(-ndimage.distance_transform_edt(~coarse) * step * spacing_mm / 12).astype(np.float32)
    full = near.repeat(step, 0).repeat(step, 1).repeat(step, 2)
    return full[tuple(slice(size) for size in labels.shape)][inside]


def _mimics(rng: np.random.Generator, tissue: dict[str, np.ndarray], field: object) -> dict[str, np.ndarray]:
    """Structures that a threshold would take for tumour: name -> share of each voxel, (V,).

    lesions: small-vessel disease of the white matter, bright on FLAIR and T2 like oedema, mostly beside the ventricles.
    vessels: they enhance on T1Gd like the rim. cavities: old infarcts, dark on T1 like necrosis.
    """
    assert callable(field)
    load = exp(rng.uniform(-5.8, -2.8))  # the share of the white matter: 0.3 % to 6 %
    wish = field(7) + 0.4 * field(3) + 3.5 * tissue["deep"]
    white = tissue["white"] > 0.7
    threshold = np.quantile(wish[white], 1 - load)
    lesions = _soft_step(wish - threshold, 0.5) * tissue["white"]
    # Two random surfaces cross in a winding line, which looks like a vessel.
    lines = exp(-(np.square(field(26)) + np.square(field(26))) / 0.03)
    vessels = np.clip(1.3 * lines, 0, 1) * np.clip(tissue["fluid"] + 0.6 * tissue["grey"], 0, 1)
    plexus = _soft_step(field(6) - 0.9, 0.5) * tissue["fluid"] * (tissue["deep"] > 0.95)
    cavities = _soft_step(field(9) - 2.9, 0.4) * (1 - tissue["fluid"])
    return {"lesions": lesions, "vessels": np.maximum(vessels, plexus), "cavities": cavities}


def _with_mimics(
    signal: np.ndarray, channel: str, level: dict[str, float], mimics: dict[str, np.ndarray]
) -> np.ndarray:
    """The signal (V,) of one modality with the mimics mixed in."""
    signal = signal + 0.7 * mimics["lesions"] * (level["oedema"] - signal)
    vessel = {"t1": 0.7, "t1ce": level["enhancing"], "flair": 0.8, "t2": 1.0}[channel]
    signal += mimics["vessels"] * (vessel - signal)
    signal += mimics["cavities"] * (level["necrosis"] - signal)
    return signal


def _soft_step(values: np.ndarray, width: float) -> np.ndarray:
    """0 below zero and 1 above, with a ramp of `width` around it."""
    return np.clip(values / width + 0.5, 0, 1)
