"""A tumour for each subject: necrotic core, enhancing rim and oedema, with the published volumes and irregular shapes.

Each part consists of the voxels with the smallest values of a field, the distance from the centre with noise added. Their number is
that of the drawn volume. So volumes follow their distribution exactly, whatever the shape.

Some tumours have satellites, separate enhancing nodules in the white matter around.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""The share of enhancing cases with satellites. Of glioblastomas, 13 % (Patil et al. 2012, J. Neurosurg. 117:705) to 35 % (Thomas
et al. 2013, J. Neuro-Oncol. 112:91) have several lesions."""

SATELLITE_MM3 = (50.0, 4000.0)
"""The range of their volumes, which are uniform in the logarithm: balls of 5 to 20 mm. We know of no published distribution. The
challenge drops lesions up to 50 mm^3."""

_MOST_SATELLITES, _ONLY_ONE = 3, 0.6
"""Most have one: patients with several lesions have 2 to 4 in all, in the median 2 (Neuro-Oncology 2019, noz126.307)."""
_LOG_RANGE = 4.382  # log(4000 / 50), of the volumes
_HALO_MM = 6.0  # the width of the oedema around a satellite


RATER_MM = {"core": 1.3, "oedema": 3.0, "rim": 0.5}
"""Part -> the standard deviation of the distance, in mm, by which a rater's border differs from the tissue's.

The mean Dice of 25 tumours on a grid of 4 mm (`test_raters_agree_as_their_docstring_says`) is 0.91, 0.92 and 0.81 for WT, TC and ET
between a rater and the tissue, and 0.87, 0.88 and 0.75 between two raters. Raters of BraTS agree with each other to 0.74 to 0.85
(Menze et al. 2015, IEEE Trans. Med. Imaging 34:1993), so about WT and TC less than here."""


@dataclass(frozen=True, kw_only=True)
class TumourPlan:
    """The properties of a tumour that are drawn before any voxel is looked at."""

    volumes_mm3: dict[int, float]
    centre_mm: np.ndarray
    """The centre of the tumour, (3,) from the centre of the brain."""
    core_radius_mm: float
    push: float
    """The strength of the mass effect, 0-1."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What the parts of a tumour are cut from: voxels with the smallest values, (X, Y, Z) in millimetres."""

    core: np.ndarray
    oedema: np.ndarray
    rim: np.ndarray
    """Added to `core`: necrosis consists of the voxels with the smallest sums."""


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


def draw_plan(rng: np.random.Generator, brain: Brain, spacing_mm: float) -> TumourPlan:
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
    return TumourPlan(volumes_mm3=volumes, centre_mm=centre, core_radius_mm=radius, push=float(rng.uniform(0.1, 0.4)))


def grow(rng: np.random.Generator, plan: TumourPlan, brain: Brain, spacing_mm: float) -> tuple[np.ndarray, np.ndarray]:
    """(label of each voxel's tissue, label map that a rater draws) of the planned tumour in `brain`, both (X, Y, Z) uint8.

    The rater moves borders to and fro, as far as raters of BraTS disagree with their consensus. Both have the planned volumes.
    """
    fields, satellites = tissue_fields(rng, plan, brain, spacing_mm)
    drawn = rater_fields(rng, fields, spacing_mm)
    tissue, labels = (labelled(one, plan, satellites, brain.mask, spacing_mm) for one in (fields, drawn))
    return tissue, labels


def tissue_fields(
    rng: np.random.Generator, plan: TumourPlan, brain: Brain, spacing_mm: float
) -> tuple[Fields, np.ndarray]:
    """(fields of the planned tumour, mask of its satellites (X, Y, Z))."""
    shape, radius = brain.mask.shape, plan.core_radius_mm
    field = _fields(rng, shape, spacing_mm)
    distance = _distance_mm(rng, plan, shape, spacing_mm)
    rough = radius * (0.20 * field(1.1 * radius) + 0.10 * field(0.45 * radius) + 0.04 * field(0.2 * radius))
    satellites, around = _satellites(rng, plan, brain, distance, spacing_mm)
    # Oedema spreads along white matter and stops at the ventricles and the cortex.
    fingers = 5.5 * field(16) + 2.5 * field(6)
    nearer = np.minimum(distance, around + max(0.0, 1.4 * radius - _HALO_MM))
    fields = Fields(
        core=distance + rough + 12 * brain.fluid,
        oedema=nearer + 0.6 * rough + fingers - 16 * brain.white + 22 * brain.fluid,
        rim=0.28 * radius * field(0.7 * radius),  # it varies in thickness, and has gaps
    )
    return fields, satellites


def rater_fields(rng: np.random.Generator, tissue: Fields, spacing_mm: float) -> Fields:
    """The fields of the tumour that a rater draws: `tissue` with its borders moved to and fro."""
    field = _fields(rng, tissue.core.shape, spacing_mm)
    return Fields(
        core=tissue.core + RATER_MM["core"] * field(6),
        oedema=tissue.oedema + RATER_MM["oedema"] * field(8),
        rim=tissue.rim + RATER_MM["rim"] * field(5),
    )


def _fields(rng: np.random.Generator, shape: tuple[int, ...], spacing_mm: float) -> Callable[[float], np.ndarray]:
    """Draws a smooth field (X, Y, Z), correlated over the distance in mm that it is called with."""
    return lambda over_mm: smooth_field(rng, shape, max(2.0, over_mm / spacing_mm))


def labelled(
    fields: Fields, plan: TumourPlan, satellites: np.ndarray, mask: np.ndarray, spacing_mm: float
) -> np.ndarray:
    """The label map (X, Y, Z) uint8 with the planned volume of each label: the voxels of the smallest values of its field."""
    voxel_mm3 = spacing_mm * spacing_mm * spacing_mm
    counts = {label: round(volume / voxel_mm3) for label, volume in plan.volumes_mm3.items()}
    labels = np.zeros(mask.shape, np.uint8)
    rest = mask & ~satellites
    in_core = counts[NECROSIS] + counts[ENHANCING] - int(np.count_nonzero(satellites))
    core = _smallest(fields.core, rest, max(2, in_core))
    labels.flat[_smallest(fields.oedema, rest & ~_marked(core, mask.shape), counts[OEDEMA])] = OEDEMA
    labels.flat[core] = ENHANCING if counts[ENHANCING] else NECROSIS
    if counts[ENHANCING] and counts[NECROSIS]:
        labels.flat[_smallest(fields.core + fields.rim, labels == ENHANCING, counts[NECROSIS])] = NECROSIS
    labels[satellites] = ENHANCING
    return labels


def _satellites(
    rng: np.random.Generator, plan: TumourPlan, brain: Brain, distance_mm: np.ndarray, spacing_mm: float
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
    for _ in range(min(_MOST_SATELLITES, int(rng.geometric(_ONLY_ONE)))):
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


def _distance_mm(rng: np.random.Generator, plan: TumourPlan, shape: tuple[int, ...], spacing_mm: float) -> np.ndarray:
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
