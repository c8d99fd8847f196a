"""A tumour for each subject: necrotic core, enhancing rim and oedema, with the published volumes and irregular shapes.

Each part consists of the voxels with the smallest values of a field, the distance from the centre with noise added. Their number is
that of the drawn volume. So volumes follow their distribution exactly, whatever the shape.

Some tumours have satellites, small separate enhancing nodules in the white matter around. A low resolution loses them first, and
lesion-wise scores count them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from lms3d.data.phantoms.brain_anatomy import Brain
from lms3d.data.phantoms.exact import cube_root, exp, length, mean, normal, normals, smallest, smooth_field

NECROSIS, OEDEMA, ENHANCING = 1, 2, 4
"""The labels of BraTS 2020."""

VOLUMES_CM3 = {
    NECROSIS: (10.8, 1.15, 0.05, 120.0),
    OEDEMA: (46.9, 0.75, 2.8, 160.0),
    ENHANCING: (14.6, 0.95, 0.1, 90.0),
}
"""Label -> (median, standard deviation of the logarithm, least, most) of the volume. The largest published volumes (189, 214, 111)
are rare. They would fill a hemisphere here, so the tail is cut."""

WITHOUT_ENHANCEMENT = 0.1
"""The share of cases without enhancing tumour."""

_MOST_CM3 = 240.0
_CORRELATION = 0.35  # between the parts of a tumour
_SECOND_FOCUS = 0.15  # the share of cases with two foci

SATELLITES = 0.25
"""The share of enhancing cases with satellites. Of glioblastomas, 13 % (Patil et al. 2012, J. Neurosurg. 117:705) to 35 % (Kyritsis
et al. 1993, Neurosurgery 32:60) are multifocal."""

SATELLITE_MM3 = (60.0, 900.0)
"""The range of their volumes, which are uniform in the logarithm: balls of 5 to 12 mm. The challenge drops lesions up to 50
mm^3."""

_MOST_SATELLITES = 4
_LOG_RANGE = 2.708  # log(900 / 60), of the volumes
_HALO_MM = 6.0  # the width of the oedema around a satellite


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The properties of a tumour that are drawn before any voxel is looked at."""

    volumes_mm3: dict[int, float]
    centre_mm: np.ndarray
    """The centre of the tumour, (3,) from the centre of the brain."""
    core_radius_mm: float
    push: float
    """The strength of the mass effect, 0-1."""


def draw_volumes(rng: np.random.Generator) -> dict[int, float]:
    """Label -> volume in mm^3. Volumes are log-normal and correlated. Without enhancement the whole core is necrosis."""
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
    """Draws volumes, and a place in the white matter of the cerebrum. brain: a coarse warp is enough."""
    volumes = draw_volumes(rng)
    radius = _radius_mm(volumes[NECROSIS] + volumes[ENHANCING])
    depth = ndimage.distance_transform_edt(brain.mask) * spacing_mm
    height = (np.arange(brain.mask.shape[2]) - (brain.mask.shape[2] - 1) / 2) * spacing_mm
    # Above the cerebellum and the brain stem, and deep enough that the surface does not flatten the core.
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
    # Oedema spreads along white matter and stops at the ventricles and the cortex.
    fingers = 5.5 * smooth_field(rng, shape, 16 / spacing_mm) + 2.5 * smooth_field(rng, shape, 6 / spacing_mm)
    nearer = np.minimum(distance, around + max(0.0, 1.4 * radius - _HALO_MM))
    oedema_field = nearer + 0.6 * rough + fingers - 16 * brain.white + 22 * brain.fluid
    labels.flat[_smallest(oedema_field, rest & ~_marked(core, shape), voxels[OEDEMA])] = OEDEMA
    labels.flat[core] = ENHANCING if voxels[ENHANCING] else NECROSIS
    if voxels[ENHANCING] and voxels[NECROSIS]:
        # The rim varies in thickness, and has gaps.
        inner = core_field + 0.28 * radius * smooth_field(rng, shape, max(2.0, 0.7 * radius / spacing_mm))
        labels.flat[_smallest(inner, labels == ENHANCING, voxels[NECROSIS])] = NECROSIS
    labels[satellites] = ENHANCING
    return labels


def _satellites(
    rng: np.random.Generator, plan: Plan, brain: Brain, distance_mm: np.ndarray, spacing_mm: float
) -> tuple[np.ndarray, np.ndarray]:
    """(mask of the satellites, distance in mm from the surface of the nearest), both (X, Y, Z). Most cases have none.

    The satellites are part of the planned enhancing volume, at most a third of it.
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
    """The distance (X, Y, Z) from the centre, or from the nearer of two, in a randomly stretched space."""
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
    """The flat indices of the `count` allowed voxels with the smallest values."""
    candidates = np.flatnonzero(allowed)
    return candidates[smallest(field.ravel()[candidates], count)]


def _marked(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    marked = np.zeros(shape, bool)
    marked.flat[indices] = True
    return marked


def _radius_mm(volume_mm3: float) -> float:
    """The radius of the ball with that volume; at least 2 mm."""
    return max(2.0, cube_root(3 * volume_mm3 / (4 * np.pi)))
