"""A healthy chest in an X-ray image: the attenuation along the beam, summed over body, bones, lungs, vessels and heart.

Image coordinates: x from -1 (the patient's right) to 1, y from -1 (neck) to 1 (abdomen); u = |x|. Air lowers the attenuation, bone
and soft tissue raise it. `Shape` holds the measures that differ between patients, breaths and diseases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from lms3d.data.phantoms.chest_fields import bump, disc, polar_noise, smooth_noise, step, union
from lms3d.data.phantoms.exact import cosine, direction, exp, length, normal, sine

_TISSUE = 1.05  # the attenuation through the middle of the body
_HILUM = (0.15, 0.04)  # |x|, y


@dataclass(kw_only=True)
class Shape:
    """The measures of a chest, in half image widths unless stated otherwise."""

    half_width: float
    """The half width of the rib cage, inside."""
    top: float
    """The y of the lungs' apex."""
    dome: tuple[float, float]
    """The y of the highest point of the right and left hemidiaphragm."""
    dome_height: float
    """The drop of the diaphragm from there to the wall."""
    heart_ratio: float
    """The cardiothoracic ratio: width of heart / width of rib cage. Above 0.5 the heart counts as enlarged."""
    rib_spacing: float
    rib_phase: float
    bone: float
    """The density of bones, which falls with age."""
    aorta: float
    """The radius of the aortic arch, which grows with age."""
    air: float
    """The share of the attenuation that the lungs' air removes."""
    vessels: float
    """The strength of the pulmonary vessels."""
    shift: float = 0.0
    """The shift of heart and trachea to the patient's left."""
    breasts: float = 0.0
    scapulae: float = 0.0
    """The overlap of the shoulder blades with the lungs, as in AP views."""


@dataclass(kw_only=True)
class Chest:
    """A drawn chest, for findings to be added. All arrays are (S, S)."""

    x: np.ndarray
    y: np.ndarray
    u: np.ndarray
    wall: np.ndarray
    """The horizontal distance to the inside of the rib cage, positive inside."""
    height: np.ndarray
    """The distance above the diaphragm."""
    lung: np.ndarray
    """1 in the lungs, and less behind the heart."""
    vessels: np.ndarray
    attenuation: np.ndarray
    shape: Shape

    def side(self, side: int) -> np.ndarray:
        """A mask of one side: 1 on the patient's right (side -1) or left (side 1)."""
        return step(self.x * np.float32(side), 0.01)


def draw_patient(rng: np.random.Generator, age: int, female: bool) -> Shape:
    """Draws the measures of a healthy patient at full inspiration, in a PA view."""
    old = np.clip((age - 20) / 60, 0, 1)
    dome = normal(rng, 0.47, 0.03)
    return Shape(
        half_width=normal(rng, 0.70 - 0.03 * female, 0.025), top=normal(rng, -0.72, 0.02),
        dome=(float(dome), float(dome + normal(rng, 0.045, 0.012))), dome_height=normal(rng, 0.17, 0.015),
        heart_ratio=float(np.clip(normal(rng, 0.425 + 0.025 * old, 0.02), 0.36, 0.49)),
        rib_spacing=normal(rng, 0.135, 0.006), rib_phase=float(rng.random()),
        bone=float(1.1 - 0.35 * old + normal(rng, 0, 0.05)), aorta=float(0.075 + 0.035 * old + normal(rng, 0, 0.006)),
        air=normal(rng, 0.70, 0.015), vessels=normal(rng, 1.0, 0.1),
        breasts=float(rng.uniform(0.5, 1.0)) if female and age > 14 else 0.0,
    )  # fmt: skip


def draw_chest(rng: np.random.Generator, shape: Shape, x: np.ndarray, y: np.ndarray) -> Chest:
    """Draws the chest of these measures on the grid x, y."""
    u, middle = np.abs(x), x - np.float32(shape.shift)
    wall = _wall(shape, y) - u
    height = _diaphragm(shape, x, u) - y
    heart = _heart(shape, middle, y)
    outside_middle = np.abs(middle) - _mediastinum(y)
    lung = step(wall, 0.008) * step(height, 0.007) * step(outside_middle, 0.012) * (1 - 0.9 * heart)
    vessels = shape.vessels * _vessels(rng, x, u, y)
    body = _body(x, y)
    attenuation = body * (_TISSUE + 0.04 * smooth_noise(rng, len(x), 7))
    attenuation -= np.float32(shape.air) * lung * np.minimum(body, 0.95) * (1 - 0.10 * np.clip(y, -1, 0.6))
    attenuation += lung * vessels + 0.05 * heart + _bones(shape, middle, x, u, y, wall, body)
    attenuation += 0.13 * bump(length(u - _HILUM[0], y - _HILUM[1]), 0.06) * lung
    attenuation -= 0.26 * step(0.034 - np.abs(middle), 0.008) * step(-0.16 - y, 0.03)  # trachea
    attenuation -= 0.30 * step(disc(x, y, (0.34, shape.dome[1] + 0.13), (0.15, 0.07)), 0.06)  # stomach's air
    attenuation += _soft_parts(shape, x, u, y, body)
    return Chest(
        x=x, y=y, u=u, wall=wall, height=height, lung=lung, vessels=vessels, attenuation=attenuation, shape=shape
    )


def _wall(shape: Shape, y: np.ndarray) -> np.ndarray:
    """The inner half width of the rib cage at height y: a dome above, nearly straight below."""
    bottom = 0.75
    t = np.clip((bottom - y) / (bottom - shape.top), 0, 1)
    return np.float32(shape.half_width) * np.sqrt(1 - t * t * t) - np.float32(0.3) * np.clip(shape.top - y, 0, 1)


def _diaphragm(shape: Shape, x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The y of the diaphragm: a dome on each side, the right one higher because of the liver."""
    left = step(x, 0.03)
    top = shape.dome[0] * (1 - left) + shape.dome[1] * left
    return top + np.float32(shape.dome_height) * np.square((u - 0.36) / 0.34)


def _mediastinum(y: np.ndarray) -> np.ndarray:
    """The half width of the mediastinum, between the lungs, without the heart."""
    return 0.095 + 0.03 * bump(y - 0.05, 0.15) + 0.04 * step(-0.55 - y, 0.08)


def _heart(shape: Shape, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A mask of heart and aortic arch. A third of it lies to the right of the middle."""
    half = shape.heart_ratio * shape.half_width
    chambers = (
        disc(x, y, (0.36 * half, 0.33), (1.08 * half, 0.62 * half + 0.08), angle=0.42),  # ventricles, apex down left
        disc(x, y, (-0.12 * half, 0.28), (0.54 * half, 0.60 * half + 0.06)),  # right atrium
        disc(x, y, (0.035, 0.0), (0.13, 0.30)),  # great vessels
        disc(x, y, (0.05, -0.28), (shape.aorta + 0.02, shape.aorta + 0.05)),  # aortic arch
    )
    return step(reduce(union, chambers), 0.025)


def _vessels(rng: np.random.Generator, x: np.ndarray, u: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Vessels that leave each hilum, fork, and fade towards the wall: the lines at which an angular noise crosses zero."""
    dx, dy = u - _HILUM[0], (y - _HILUM[1]) * 0.9
    radius = length(dx, dy) + np.float32(1e-3)
    bend = np.float32(0.012) * smooth_noise(rng, len(x), 6)
    turns = bend + (direction(dy, dx) + 0.5) * 0.5 + 0.5 * (x > 0)
    total = np.zeros_like(x)
    for branches, reach, strength in ((34, 0.22, 0.17), (70, 0.38, 0.12)):
        noise = polar_noise(rng, turns, np.clip(radius, 0, 1), (branches, 6))
        total += strength * bump(noise * radius * branches, 1.1) * exp(-radius / reach)
    return total


def _body(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The thickness of the body, 0-1: neck, shoulders, trunk."""
    half = 0.26 + 0.95 * step(y + 0.82, 0.09) - 0.20 * step(y + 0.20, 0.20)
    profile = np.clip(1 - np.square(x / half), 0, 1)
    return np.sqrt(profile) * (0.78 + 0.22 * step(y + 0.45, 0.2))


def _bones(
    shape: Shape, middle: np.ndarray, x: np.ndarray, u: np.ndarray, y: np.ndarray, wall: np.ndarray, body: np.ndarray
) -> np.ndarray:
    """The attenuation of ribs, spine, clavicles, shoulder blades and arms."""
    cage = step(wall + 0.025, 0.012) * step(y - shape.top + 0.06, 0.02)
    phase = (y - 0.50 * u * u) / shape.rib_spacing + shape.rib_phase
    back = _ribs(phase, 0.30) * cage * step(u - 0.05, 0.01) * step(0.62 - y, 0.04)
    phase = (y + 0.55 * u) / (1.2 * shape.rib_spacing) + 2 * shape.rib_phase
    front = _ribs(phase, 0.26) * cage * step(u - 0.30, 0.06) * step(y + 0.55, 0.05) * step(0.5 - y, 0.05)
    disks = 0.85 + 0.15 * cosine(2 * np.pi * y / (0.9 * shape.rib_spacing))
    spine = step(0.068 - u, 0.012) * disks
    s = np.clip((u - 0.06) / 0.72, 0, 1)
    clavicle = (
        bump(y + 0.545 + 0.13 * s + 0.03 * sine(2 * np.pi * s), 0.017) * step(u - 0.06, 0.01) * step(0.8 - u, 0.02)
    )
    blade = disc(u, y, (0.80 - 0.14 * shape.scapulae, -0.30), (0.30, 0.11), angle=-1.15)
    arm = disc(u, y, (0.93, -0.60), (0.13, 0.14))
    total = 0.115 * back + 0.06 * front + 0.15 * spine + 0.21 * clavicle
    total += 0.07 * step(blade, 0.02) + 0.10 * bump(blade, 0.05) + 0.22 * step(arm, 0.03)
    return np.float32(shape.bone) * total * np.minimum(1, 3 * body)


def _ribs(phase: np.ndarray, width: float) -> np.ndarray:
    """A row of ribs, one for each unit of `phase`: bands with dense edges."""
    distance = np.abs(phase - np.round(phase))
    return 0.65 * step(width - distance, 0.02) + 0.5 * bump(distance - width, 0.045)


def _soft_parts(shape: Shape, x: np.ndarray, u: np.ndarray, y: np.ndarray, body: np.ndarray) -> np.ndarray:
    """The attenuation of the breasts."""
    breast = disc(u, y, (0.40, 0.22), (0.30, 0.27))
    lower = 0.4 + 0.6 * step(y - 0.2, 0.12)
    return np.float32(0.20 * shape.breasts) * np.sqrt(np.clip(breast, 0, 1)) * lower * body
