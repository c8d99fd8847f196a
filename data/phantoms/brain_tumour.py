"""A tumour per subject: necrotic core, enhancing rim and oedema, of the published volumes and irregular shape.

Each part is the set of voxels with the smallest values of a field "distance from the centre, bent by noise", just so
many that the volume is the one that was drawn. So volumes follow their distribution exactly whatever the shape.

Some tumours have satellites, small enhancing nodules of their own in the white matter around: what a low resolution loses
first, and what lesion-wise scores count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from data.phantoms.brain_anatomy import Brain
from data.phantoms.exact import cube_root, exp, length, mean, normal, normals, smallest, smooth_field

NECROSIS, OEDEMA, ENHANCING = 1, 2, 4
"""Labels of BraTS 2020."""

VOLUMES_CM3 = {
    NECROSIS: (10.8, 1.15, 0.05, 120.0),
    OEDEMA: (46.9, 0.75, 2.8, 160.0),
    ENHANCING: (14.6, 0.95, 0.1, 90.0),
}
"""Median, standard deviation of the logarithm, least, most. The published largest (189, 214, 111) are rare;
here they would fill a hemisphere, so the tail is cut."""

WITHOUT_ENHANCEMENT = 0.1
"""Share of cases without enhancing tumour."""

_MOST_CM3 = 240.0
_CORRELATION = 0.35  # large tumours have large parts
_SECOND_FOCUS = 0.15  # share of cases

SATELLITES = 0.25
"""Share of enhancing cases with satellites. Of glioblastomas, 13 % (Patil et al. 2012, J. Neurosurg. 117:705) to 35 % (Kyritsis
et al. 1993, Neurosurgery 32:60) are multifocal."""

SATELLITE_MM3 = (60.0, 900.0)
"""Volumes, spread evenly over their logarithm: balls of 5 to 12 mm. The challenge drops lesions of up to 50 mm^3."""

_MOST_SATELLITES = 4
_LOG_RANGE = 2.708  # of the volumes: log(900 / 60)
_HALO_MM = 6.0  # oedema around a satellite


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is drawn before any voxel is looked at."""

    volumes_mm3: dict[int, float]
    centre_mm: np.ndarray
    """(3,), from the centre of the brain."""
    core_radius_mm: float
    push: float
    """Strength of the mass effect, 0-1."""


def draw_volumes(rng: np.random.Generator) -> dict[int, float]:
    """Label -> mm^3. Log-normal and correlated; without enhancement the whole core is necrosis."""
    common = normal(rng, 0, 1)
    volumes = {}
    for label, (median, deviation, least, most) in VOLUMES_CM3.items():
        score = np.sqrt(_CORRELATION) * common + np.sqrt(1 - _CORRELATION) * normal(rng, 0, 1)
        volumes[label] = 1000 * float(np.clip(median * exp(deviation * score), least, most))
    if rng.random() < WITHOUT_ENHANCEMENT:
        volumes[ENHANCING] = 0.0
    shrink = min(1.0, 1000 * _MOST_CM3 / (volumes[NECROSIS] + volumes[OEDEMA] + volumes[ENHANCING]))
    return {label: volume * shrink for label, volume in volumes.items()}


def draw_plan(rng: np.random.Generator, brain: Brain, spacing_mm: float) -> Plan:
    """Volumes and a place in the white matter of the cerebrum; brain: a coarse warp is enough."""
    volumes = draw_volumes(rng)
    radius = _radius_mm(volumes[NECROSIS] + volumes[ENHANCING])
    depth = ndimage.distance_transform_edt(brain.mask) * spacing_mm
    height = (np.arange(brain.mask.shape[2]) - (brain.mask.shape[2] - 1) / 2) * spacing_mm
    # Above the cerebellum and the brain stem, and deep enough that the core does not end up flat on the surface.
    eligible = (brain.white > 0.5) & (depth > min(8 + 0.5 * radius, 26)) & (height > -12)[None, None, :]
    chosen = rng.choice(np.flatnonzero(eligible))
    index = np.array(np.unravel_index(chosen, eligible.shape))
    centre = (index - (np.array(eligible.shape) - 1) / 2) * spacing_mm
    return Plan(volumes_mm3=volumes, centre_mm=centre, core_radius_mm=radius, push=float(rng.uniform(0.1, 0.4)))


def grow(rng: np.random.Generator, plan: Plan, brain: Brain, spacing_mm: float) -> np.ndarray:
    """The label map (X, Y, Z) uint8 of the planned tumour in `brain`."""
    shape, radius = brain.mask.shape, plan.core_radius_mm
    distance = _distance_mm(rng, plan, shape, spacing_mm)
    rough = np.zeros(shape, np.float32)
    for share, amount in ((1.1, 0.20), (0.45, 0.10), (0.2, 0.04)):
        rough += amount * radius * smooth_field(rng, shape, max(2.0, share * radius / spacing_mm))
    core_field = distance + rough + 12 * brain.fluid
    voxels = {
        label: round(volume / (spacing_mm * spacing_mm * spacing_mm)) for label, volume in plan.volumes_mm3.items()
    }
    labels = np.zeros(shape, np.uint8)
    satellites, around = _satellites(rng, plan, brain, distance, spacing_mm)
    rest = brain.mask & ~satellites
    in_core = voxels[NECROSIS] + voxels[ENHANCING] - int(np.count_nonzero(satellites))
    core = _smallest(core_field, rest, max(2, in_core))
    # Oedema creeps along white matter and stops at the ventricles and the cortex.
    fingers = 5.5 * smooth_field(rng, shape, 16 / spacing_mm) + 2.5 * smooth_field(rng, shape, 6 / spacing_mm)
    nearer = np.minimum(distance, around + max(0.0, 1.4 * radius - _HALO_MM))
    oedema_field = nearer + 0.6 * rough + fingers - 16 * brain.white + 22 * brain.fluid
    labels.flat[_smallest(oedema_field, rest & ~_marked(core, shape), voxels[OEDEMA])] = OEDEMA
    labels.flat[core] = ENHANCING if voxels[ENHANCING] else NECROSIS
    if voxels[ENHANCING] and voxels[NECROSIS]:
        # The rim is thick here and thin there, and open in places.
        inner = core_field + 0.28 * radius * smooth_field(rng, shape, max(2.0, 0.7 * radius / spacing_mm))
        labels.flat[_smallest(inner, labels == ENHANCING, voxels[NECROSIS])] = NECROSIS
    labels[satellites] = ENHANCING
    return labels


def _satellites(
    rng: np.random.Generator, plan: Plan, brain: Brain, distance_mm: np.ndarray, spacing_mm: float
) -> tuple[np.ndarray, np.ndarray]:
    """Where they are (X, Y, Z), nowhere in most cases, and the distance (X, Y, Z) in mm from the surface of the nearest.

    They are part of the planned enhancing volume, at most a third of it.
    """
    marked, around = np.zeros(brain.mask.shape, bool), np.full_like(distance_mm, 1e6)
    if not plan.volumes_mm3[ENHANCING] or rng.random() >= SATELLITES:
        return marked, around
    left = plan.volumes_mm3[ENHANCING] / 3
    near, beyond = plan.core_radius_mm + 8, plan.core_radius_mm + 40
    place = np.flatnonzero((brain.white > 0.5) & brain.mask & (distance_mm > near) & (distance_mm < beyond))
    for _ in range(int(rng.integers(1, _MOST_SATELLITES + 1))):
        volume = SATELLITE_MM3[0] * exp(rng.uniform(0, _LOG_RANGE))
        if volume > left or not place.size:
            continue
        index = np.array(np.unravel_index(rng.choice(place), marked.shape))
        centre = (index - (np.array(marked.shape) - 1) / 2) * spacing_mm
        stretch = 0.15 * normals(rng, (3,))
        apart = _ellipsoid(centre, exp(stretch - mean(stretch)), marked.shape, spacing_mm)
        marked.flat[_smallest(apart, brain.mask, round(volume / (spacing_mm * spacing_mm * spacing_mm)))] = True
        around = np.minimum(around, apart - np.float32(_radius_mm(volume)))
        left -= volume
    return marked, around


def _distance_mm(rng: np.random.Generator, plan: Plan, shape: tuple[int, ...], spacing_mm: float) -> np.ndarray:
    """Distance (X, Y, Z) from the (nearer) centre, in a space that is stretched at random."""
    stretch = 0.18 * normals(rng, (3,))
    stretch = exp(stretch - mean(stretch))  # their product is 1
    first = _ellipsoid(plan.centre_mm, stretch, shape, spacing_mm)
    if rng.random() >= _SECOND_FOCUS:
        return first
    way = normals(rng, (3,))
    apart = rng.uniform(1.5, 2.4) * max(8, plan.core_radius_mm)
    second = plan.centre_mm + way / length(*way) * apart
    return np.minimum(first, _ellipsoid(second, 1 / stretch, shape, spacing_mm) + 0.35 * plan.core_radius_mm)


def _ellipsoid(centre_mm: np.ndarray, stretch: np.ndarray, shape: tuple[int, ...], spacing_mm: float) -> np.ndarray:
    x, y, z = (
        ((np.arange(size) - (size - 1) / 2) * spacing_mm - centre_mm[axis]) * stretch[axis]
        for axis, size in enumerate(shape)
    )
    return length(x[:, None, None], y[None, :, None], z[None, None, :]).astype(np.float32)


def _smallest(field: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Flat indices of the `count` allowed voxels with the smallest values."""
    candidates = np.flatnonzero(allowed)
    return candidates[smallest(field.ravel()[candidates], count)]


def _marked(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    marked = np.zeros(shape, bool)
    marked.flat[indices] = True
    return marked


def _radius_mm(volume_mm3: float) -> float:
    """Of the ball with that volume."""
    return max(2.0, cube_root(3 * volume_mm3 / (4 * np.pi)))
