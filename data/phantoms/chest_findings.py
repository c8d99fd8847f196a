"""The effect of each finding on a chest. Some change its measures before it is drawn (RESHAPE), most change the attenuation
afterwards (DRAW). Several may occur together. Terms and places follow radiology textbooks (Fleischner Society glossary, Hansell et
al. 2008). Strength and size vary, so that both faint and plain cases occur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.phantoms.chest_anatomy import Chest, Shape
from lms3d.data.phantoms.chest_fields import bump, disc, smooth_noise, step
from lms3d.data.phantoms.exact import exp, length, mean, sine

Rng = np.random.Generator


def _side(rng: Rng) -> int:
    return -1 if rng.random() < 0.55 else 1


# --- changes of shape -------------------------------------------------------------------------------------------------


def _large_heart(rng: Rng, shape: Shape) -> None:
    shape.heart_ratio = float(rng.uniform(0.58, 0.70))


def _hyperinflation(rng: Rng, shape: Shape) -> None:
    """Dark, large lungs with a flat, low diaphragm, few vessels and a narrow heart."""
    low = rng.uniform(0.10, 0.15)
    shape.dome = (shape.dome[0] + low, shape.dome[1] + low)
    shape.dome_height *= rng.uniform(0.1, 0.3)
    shape.air += rng.uniform(0.08, 0.12)
    shape.vessels *= rng.uniform(0.3, 0.5)
    shape.heart_ratio *= 0.82
    shape.half_width *= 1.04


def _small_lungs(rng: Rng, shape: Shape) -> None:
    high = rng.uniform(0.04, 0.08)
    shape.dome = (shape.dome[0] - high, shape.dome[1] - high)


# --- changes of attenuation -------------------------------------------------------------------------------------------


def _atelectasis(rng: Rng, chest: Chest) -> np.ndarray:
    """Plates of collapsed lung above one side of the diaphragm."""
    side, total = _side(rng), np.zeros_like(chest.x)
    for number in range(rng.integers(2, 4)):
        above = 0.05 + 0.085 * number + rng.uniform(0, 0.03)
        line = chest.height - above - rng.uniform(-0.25, 0.25) * (chest.u - 0.4)
        total += rng.uniform(0.30, 0.42) * bump(line, 0.016) * step(chest.u - rng.uniform(0.15, 0.25), 0.03)
    return total * chest.lung * chest.side(side)


def _effusion(rng: Rng, chest: Chest) -> np.ndarray:
    """Fluid in the angle between diaphragm and wall. Its surface, the meniscus, rises along the wall."""
    total = np.zeros_like(chest.x)
    for side in (-1, 1) if rng.random() < 0.35 else (_side(rng),):
        top = chest.shape.dome[side > 0] - rng.uniform(-0.04, 0.30)
        surface = top - 0.22 * exp(-np.clip(chest.wall, 0, 1) / 0.09)
        total += step(chest.y - surface, 0.012) * chest.side(side)
    return 0.60 * total * chest.lung


def _infiltration(rng: Rng, chest: Chest) -> np.ndarray:
    """Patches without a border in the middle zones."""
    zone = bump(chest.y + rng.uniform(-0.05, 0.15), 0.20) * bump(chest.u - 0.38, 0.20) * chest.lung
    if rng.random() < 0.4:
        zone *= chest.side(_side(rng))
    noise = smooth_noise(rng, len(chest.x), 9)
    patches = np.clip(noise - mean(noise * zone) / mean(zone) + 0.35, 0, 1.3)  # always about half of the zone
    return rng.uniform(0.38, 0.50) * patches * zone


def _mass(rng: Rng, chest: Chest) -> np.ndarray:
    """A dense, lobed opacity of more than 3 cm."""
    at, radius = _place(rng, chest, 0.10), rng.uniform(0.11, 0.17)
    ball = disc(chest.x, chest.y, at, (radius, radius * rng.uniform(0.8, 1.2)), rng.uniform(0, 3))
    ball = ball + 0.12 * smooth_noise(rng, len(chest.x), 14)
    return rng.uniform(0.36, 0.48) * step(ball, 0.05) * _in_cage(chest)


def _nodule(rng: Rng, chest: Chest) -> np.ndarray:
    """One to four round opacities of less than 3 cm."""
    total = np.zeros_like(chest.x)
    for _ in range(rng.integers(1, 5)):
        at, radius = _place(rng, chest, 0.04), rng.uniform(0.040, 0.058)
        total += rng.uniform(0.34, 0.46) * step(disc(chest.x, chest.y, at, (radius, radius)), 0.12)
    return total * _in_cage(chest)


def _pneumonia(rng: Rng, chest: Chest) -> np.ndarray:
    """One mottled opacity with soft borders in a lower lobe."""
    side = _side(rng)
    at = (side * rng.uniform(0.33, 0.48), chest.shape.dome[side > 0] - rng.uniform(0.13, 0.24))
    size = rng.uniform(0.12, 0.17)
    mottled = np.clip(1.0 + 0.30 * smooth_noise(rng, len(chest.x), 22), 0.3, 1.5)
    return rng.uniform(0.40, 0.52) * bump(length(chest.x - at[0], chest.y - at[1]), size) * mottled * chest.lung


def _pneumothorax(rng: Rng, chest: Chest) -> np.ndarray:
    """Air between wall and lung: a dark rim without vessels, the bright line of the pleura, and a denser lung beside it."""
    side = _side(rng)
    width = rng.uniform(0.10, 0.20) * (1.15 - 0.5 * step(chest.y + 0.1, 0.25))
    inside = chest.wall - width
    rim = step(-inside, 0.006)
    change = -(chest.vessels + 0.13) * rim + 0.15 * bump(inside, 0.009) + 0.13 * (1 - rim)
    return change * chest.lung * chest.side(side)


def _consolidation(rng: Rng, chest: Chest) -> np.ndarray:
    """An upper lobe filled down to its fissure, dense and even, with bronchi that stay dark."""
    fissure = rng.uniform(-0.20, -0.05)
    even = 1 + 0.10 * smooth_noise(rng, len(chest.x), 10)
    lobe = step(fissure - chest.y, 0.010) * step(chest.y - fissure + rng.uniform(0.22, 0.40), 0.06)
    return (rng.uniform(0.42, 0.54) * even - 1.8 * chest.vessels) * lobe * chest.lung * chest.side(_side(rng))


def _edema(rng: Rng, chest: Chest) -> np.ndarray:
    """A haze that spreads from the hila on both sides, and short lines at the walls (Kerley B)."""
    haze = bump(length(chest.u - 0.22, 0.8 * (chest.y - 0.05)), rng.uniform(0.19, 0.25))
    haze = haze * (1 + 0.15 * smooth_noise(rng, len(chest.x), 16)) + 0.20
    kerley = bump(sine(chest.y * 95), 0.35) * bump(chest.wall, 0.06) * step(chest.y - 0.1, 0.1)
    return (rng.uniform(0.32, 0.44) * haze + 0.12 * kerley) * chest.lung


def _fibrosis(rng: Rng, chest: Chest) -> np.ndarray:
    """A net of lines, which is densest at the bases and the walls."""
    net = bump(smooth_noise(rng, len(chest.x), 28), 0.20) + bump(smooth_noise(rng, len(chest.x), 46), 0.25)
    where = 0.25 + exp(-np.clip(chest.wall, 0, 1) / 0.15) + exp(-np.clip(chest.height, 0, 2) / 0.25)
    return rng.uniform(0.17, 0.23) * (net + 0.3) * np.minimum(where, 1.0) * chest.lung


def _thickened_pleura(rng: Rng, chest: Chest) -> np.ndarray:
    """A bright, uneven rim along the wall, which leaves out the angle at the bottom."""
    width = rng.uniform(0.075, 0.105) * np.clip(1 + 0.35 * smooth_noise(rng, len(chest.x), 9), 0.2, 2)
    rim = step(width - chest.wall, 0.012) + 0.35 * bump(width - chest.wall, 0.014)
    side = chest.side(_side(rng)) if rng.random() < 0.6 else 1.0
    return rng.uniform(0.40, 0.50) * rim * step(0.25 - chest.y, 0.06) * chest.lung * side


def _hernia(rng: Rng, chest: Chest) -> np.ndarray:
    """A part of the stomach behind the heart: a round wall, with air above a level of fluid."""
    at = (rng.uniform(0.0, 0.12) + chest.shape.shift, chest.shape.dome[1] - rng.uniform(0.12, 0.18))
    radius = rng.uniform(0.12, 0.16)
    ball = disc(chest.x, chest.y, at, (radius * 1.15, radius))
    air = step(ball - 0.12, 0.04) * step(at[1] + rng.uniform(0.0, 0.05) - chest.y, 0.008)
    return 0.20 * bump(ball - 0.05, 0.07) + 0.12 * step(ball, 0.03) - rng.uniform(0.42, 0.55) * air


def _place(rng: Rng, chest: Chest, margin: float) -> tuple[float, float]:
    """Draws a point in a lung, at least `margin` from its borders."""
    every = 4
    deep = (chest.lung > 0.9) & (chest.wall > margin) & (chest.height > margin) & (chest.u > 0.16)
    rows, columns = np.nonzero(deep[::every, ::every])
    k = rng.integers(len(rows))
    return float(chest.x[rows[k] * every, columns[k] * every]), float(chest.y[rows[k] * every, columns[k] * every])


def _in_cage(chest: Chest) -> np.ndarray:
    return step(chest.wall, 0.008)


RESHAPE: Mapping[str, Callable[[Rng, Shape], None]] = {
    "Cardiomegaly": _large_heart,
    "Emphysema": _hyperinflation,
    "Fibrosis": _small_lungs,
}

DRAW: Mapping[str, Callable[[Rng, Chest], np.ndarray]] = {
    "Atelectasis": _atelectasis,
    "Effusion": _effusion,
    "Infiltration": _infiltration,
    "Mass": _mass,
    "Nodule": _nodule,
    "Pneumonia": _pneumonia,
    "Pneumothorax": _pneumothorax,
    "Consolidation": _consolidation,
    "Edema": _edema,
    "Fibrosis": _fibrosis,
    "Pleural_Thickening": _thickened_pleura,
    "Hernia": _hernia,
}


def reshape(rng: Rng, shape: Shape, findings: Sequence[str]) -> None:
    """Changes the measures of a chest as these findings do."""
    # In this order, so that a large heart stays large in hyperinflated lungs.
    for finding in ("Emphysema", "Fibrosis", "Cardiomegaly"):
        if finding in findings:
            RESHAPE[finding](rng, shape)


def draw(rng: Rng, chest: Chest, findings: Sequence[str]) -> None:
    """Adds findings to the attenuation of a chest."""
    for finding in FINDINGS:
        if finding in findings and finding in DRAW:
            chest.attenuation += DRAW[finding](rng, chest)
