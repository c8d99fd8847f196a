"""Turns tissues into four modalities: contrasts, structures that only look like tumour, and the scanner's faults.

No tissue of the tumour has an intensity of its own. Oedema has that of small-vessel disease, and fades into grey matter's; necrosis
lies between fluid and solid tissue; enhancement is shared with veins, meninges and the choroid plexus, and fresh blood is bright
before contrast is given. What tells them apart is the place, the shape and the neighbourhood.

Everything works on the voxels inside the brain, as vectors (V,), because a brain fills only a sixth of its grid.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import ndimage

from lms3d.data.brats.schema import CHANNELS
from lms3d.data.phantoms.brain_anatomy import Brain
from lms3d.data.phantoms.brain_tumour import ENHANCING, NECROSIS, OEDEMA
from lms3d.data.phantoms.exact import blur, exp, normal, normals, smooth_field

INTENSITIES = {
    "t1": {
        "grey": 0.75,
        "fluid": 0.35,
        "oedema": 0.76,
        "necrosis": 0.5,
        "enhancing": 0.74,
        "vessel": 0.6,
        "blood": 1.2,
    },
    "t1ce": {
        "grey": 0.78,
        "fluid": 0.35,
        "oedema": 0.76,
        "necrosis": 0.5,
        "enhancing": 1.3,
        "vessel": 1.4,
        "blood": 1.3,
    },
    "flair": {
        "grey": 1.2,
        "fluid": 0.45,
        "oedema": 1.65,
        "necrosis": 0.9,
        "enhancing": 1.35,
        "vessel": 1.1,
        "blood": 1.2,
    },
    "t2": {"grey": 1.35, "fluid": 2.4, "oedema": 1.85, "necrosis": 2.1, "enhancing": 1.6, "vessel": 1.5, "blood": 1.1},
}
"""Modality -> tissue -> intensity, where white matter has 1."""

WHITE_MATTER_LESIONS = (0.006, 1.0)
"""The median share of the white matter with small-vessel disease, and the standard deviation of its logarithm: 1 % on average.
At the age of 60 to 64 it is 0.83 % (Wen and Sachdev 2004, NeuroImage 22:144), and patients with a glioblastoma are as old."""
_MOST_LESIONS = 0.06

_CONTRAST = (0.15, 0.05)
"""Between scanners: the standard deviations of the logarithms of a modality's contrast and of a tissue's intensity."""
_NOISE = (0.03, 0.07)  # of white matter: the least and the most
_BIAS = 0.14  # the standard deviation of the logarithm of the bias field
_GAIN = (400.0, 0.12)  # the median intensity of white matter, and the standard deviation of its logarithm
_SLICES_MM = {
    "t1": (1, 3),
    "t1ce": (1, 2),
    "flair": (1, 4),
    "t2": (1, 4),
}  # the thinnest and the thickest, before resampling
_BLEEDING = 0.3  # the share of tumours with blood in them

Field = Callable[[float], np.ndarray]
"""From a length in mm to a new random field (V,) that varies over it."""


def render(rng: np.random.Generator, brain: Brain, tumour: np.ndarray, spacing_mm: float) -> np.ndarray:
    """The images, (4, X, Y, Z) int16 in the order of CHANNELS: exactly zero outside the brain, and at least 1 inside.

    tumour: the label of each voxel's tissue, (X, Y, Z).
    """
    inside, shape = brain.mask, brain.mask.shape

    def field(over_mm: float) -> np.ndarray:
        return smooth_field(rng, shape, max(1.5, over_mm / spacing_mm))[inside]

    tissue = {name: getattr(brain, name)[inside] for name in ("white", "grey", "fluid", "deep", "surface")}
    shares = _tumour_shares(tumour, inside, spacing_mm)
    shares[OEDEMA] *= np.clip(0.62 + 0.15 * field(10) + 0.4 * _nearness(tumour, inside, spacing_mm), 0.4, 1)
    mimics = _mimics(rng, tissue, field)
    solid = np.clip(0.5 * rng.random() + 0.3 * field(7), 0, 1)  # of what does not enhance, some is not liquid
    bleeding = _soft_step(field(6) - 1.7, 0.6) * (rng.random() < _BLEEDING)
    texture = {"grey": field(9), OEDEMA: field(6), NECROSIS: field(5), ENHANCING: field(4)}
    images = np.zeros((len(CHANNELS), *shape), np.int16)
    for index, channel in enumerate(CHANNELS):
        level = _levels(rng, channel)
        signal = tissue["white"] + level["grey"] * tissue["grey"] * (1 + 0.08 * texture["grey"])
        signal += level["fluid"] * tissue["fluid"]
        signal = _with_mimics(signal, level, mimics)
        signal += shares[OEDEMA] * (level["oedema"] * (1 + 0.06 * texture[OEDEMA]) - signal)
        dead = level["necrosis"] + solid * (level["oedema"] - level["necrosis"])
        signal += shares[NECROSIS] * (dead * (1 + 0.12 * texture[NECROSIS]) - signal)
        signal += shares[ENHANCING] * (level["enhancing"] * (1 + 0.14 * texture[ENHANCING]) - signal)
        signal += bleeding * (shares[NECROSIS] + shares[ENHANCING]) * (level["blood"] - signal)
        signal = _through_slices(rng, signal, channel, inside, spacing_mm)
        signal *= exp(_BIAS * field(80))
        signal += rng.uniform(*_NOISE) * normals(rng, signal.shape)
        gain = _GAIN[0] * exp(normal(rng, 0, _GAIN[1]))
        images[index][inside] = np.clip(np.rint(gain * signal), 1, np.iinfo(np.int16).max)
    return images


def _levels(rng: np.random.Generator, channel: str) -> dict[str, float]:
    """Tissue -> its intensity on one scanner, which has a contrast of its own."""
    contrast = min(1.3, exp(normal(rng, 0, _CONTRAST[0])))
    return {
        name: (1 + contrast * (value - 1)) * exp(normal(rng, 0, _CONTRAST[1]))
        for name, value in INTENSITIES[channel].items()
    }


def _through_slices(
    rng: np.random.Generator, signal: np.ndarray, channel: str, inside: np.ndarray, spacing_mm: float
) -> np.ndarray:
    """The signal (V,) as slices of some thickness show it: the mean over each slice, from the bottom to the top."""
    thickness = int(rng.integers(_SLICES_MM[channel][0], _SLICES_MM[channel][1] + 1) / spacing_mm)
    if thickness < 2:
        return signal
    volume = np.zeros((2, *inside.shape), np.float32)
    volume[0][inside], volume[1][inside] = signal, 1
    weights = [1 / thickness] * thickness
    blurred, known = (ndimage.correlate1d(one, weights, axis=2)[inside] for one in volume)
    return blurred / known


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


def _mimics(rng: np.random.Generator, tissue: dict[str, np.ndarray], field: Field) -> dict[str, np.ndarray]:
    """Structures that intensities alone would take for tumour: name -> share of each voxel, (V,).

    lesions: small-vessel disease of the white matter, bright on FLAIR and T2 like oedema, mostly beside the ventricles.
    vessels: veins in the sulci, meninges and falx, which enhance on T1Gd like the rim. plexus: the choroid plexus in the
    ventricles, which does, too, and is brighter on FLAIR. cavities: old infarcts, like necrosis.
    """
    median, deviation = WHITE_MATTER_LESIONS
    load = min(_MOST_LESIONS, median * exp(normal(rng, 0, deviation)))
    wish = field(7) + 0.4 * field(3) + 3.5 * tissue["deep"]
    threshold = np.quantile(wish[tissue["white"] > 0.7], 1 - load)
    lesions = _soft_step(wish - threshold, 0.5) * tissue["white"]
    # Two random surfaces cross in a winding line, which looks like a vessel.
    lines = exp(-(np.square(field(22)) + np.square(field(22))) / 0.03)
    veins = np.clip(1.3 * lines, 0, 1) * np.clip(tissue["fluid"] + 0.6 * tissue["grey"], 0, 1)
    meninges = tissue["surface"] * _soft_step(field(14) + rng.uniform(-0.8, 0.6), 1.0)
    plexus = _soft_step(field(6) - 0.7, 0.5) * tissue["fluid"] * (tissue["deep"] > 0.95)
    cavities = _soft_step(field(9) - 2.9, 0.4) * (1 - tissue["fluid"])
    return {"lesions": lesions, "vessels": np.maximum(veins, meninges), "plexus": plexus, "cavities": cavities}


def _with_mimics(signal: np.ndarray, level: dict[str, float], mimics: dict[str, np.ndarray]) -> np.ndarray:
    """The signal (V,) of one modality with the mimics mixed in."""
    signal = signal + 0.9 * mimics["lesions"] * (level["oedema"] - signal)
    signal += mimics["vessels"] * (level["vessel"] - signal)
    signal += mimics["plexus"] * (level["enhancing"] - signal)
    signal += mimics["cavities"] * (level["necrosis"] - signal)
    return signal


def _soft_step(values: np.ndarray, width: float) -> np.ndarray:
    """0 below zero and 1 above, with a ramp of `width` around it."""
    return np.clip(values / width + 0.5, 0, 1)
