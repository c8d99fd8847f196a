"""A healthy brain for each subject: the ICBM152 tissue maps, scaled, turned and bent.

Fonov et al., "Unbiased average age-appropriate atlases", NeuroImage 54 (2011); the maps come with nilearn.
Axes here are as in a BraTS array: x to the left, y to the back, z up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import ndimage

from lms3d.data.phantoms.exact import cosine, exp, normal, normals, sine, smooth_field

MEAN_SCALE = (0.92, 0.915, 0.875)
"""The factors from template to subject on each axis. With the bends, which widen it, the template's box of 145x181x155 mm becomes
the typical 140x171x140 mm."""

_BENDS = ((38.0, 3.2), (14.0, 1.1))
"""(wavelength in mm, amplitude in mm) of the bends: first of lobes, then of gyri."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """The atlas: maps on one grid of 1 mm, (X, Y, Z) float32 from 0 to 1."""

    white: np.ndarray
    grey: np.ndarray
    brain: np.ndarray
    deep: np.ndarray
    """The nearness of the ventricles: 1 inside, falling to 0 over about 15 mm."""
    surface: np.ndarray
    """The nearness of the meninges: 1 on the brain's surface and in the cleft between its halves, falling to 0 over about 3 mm."""
    centre: np.ndarray
    """The centre of the brain, (3,) in voxels."""
    size: np.ndarray
    """The size of the box around the brain, (3,) in voxels."""


@dataclass(frozen=True, kw_only=True)
class Brain:
    """One subject's maps on a grid around the brain, (X, Y, Z) float32 from 0 to 1; the three tissues sum to 1."""

    white: np.ndarray
    grey: np.ndarray
    fluid: np.ndarray
    deep: np.ndarray
    surface: np.ndarray
    mask: np.ndarray
    """The brain, (X, Y, Z) bool."""


@dataclass(frozen=True, kw_only=True)
class Pose:
    """The individual shape of a subject's brain. It is drawn once and used on any grid."""

    matrix: np.ndarray
    """The matrix (3, 3) from millimetres of the subject to voxels of the template, both from the brain's centre."""
    mirrored: bool
    bends: tuple[np.ndarray, ...]
    """The displacement, (3, X, Y, Z) in millimetres on a 4 mm grid around the centre."""


_TILT = 0.052
"""The standard deviation of the turns about the three axes, in radians: 3 degrees."""

BEND_SPACING_MM = 4.0
_BEND_SHAPE = (56, 60, 52)


@lru_cache(maxsize=1)
def template() -> Template:
    """The atlas, cut to the brain. Takes about 3 s, once per process."""
    from nilearn import datasets  # it is slow to import, and needed only here

    loaders = (datasets.load_mni152_wm_template, datasets.load_mni152_gm_template, datasets.load_mni152_brain_mask)
    # Reverse two axes: nilearn's point right and forward, BraTS's left and back.
    white, grey, brain = (np.asarray(load(resolution=1).dataobj, np.float32)[::-1, ::-1] for load in loaders)
    used = [np.flatnonzero(brain.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
    inside = tuple(slice(max(0, axis[0] - 3), axis[-1] + 4) for axis in used)
    white, grey, brain = (np.ascontiguousarray(array[inside]) for array in (white, grey, brain))
    fluid = (brain > 0.5) & (white + grey < 0.5)
    depth = ndimage.distance_transform_edt(brain > 0.5)
    to_ventricle = ndimage.distance_transform_edt(~(fluid & (depth > 22)))
    centre = np.array([(axis[0] + axis[-1]) / 2 - part.start for axis, part in zip(used, inside, strict=True)])
    from_middle = np.abs(np.arange(brain.shape[0]) - centre[0])[:, None, None]
    cleft = exp(-from_middle / 1.5) * (1 - np.clip(white + grey, 0, 1)) * (depth > 2)
    return Template(
        white=white,
        grey=grey,
        brain=brain,
        deep=exp(-to_ventricle / 6).astype(np.float32),
        surface=np.maximum(exp(-np.maximum(depth - 1, 0) / 1.2), cleft * (to_ventricle > 4)).astype(np.float32),
        centre=centre,
        size=np.array([axis[-1] - axis[0] + 1 for axis in used], float),
    )


def draw_pose(rng: np.random.Generator) -> Pose:
    """Draws size, tilt, side and bends of one subject."""
    scale = np.array(MEAN_SCALE) * exp(normal(rng, 0, 0.02) + 0.025 * normals(rng, (3,)))
    turn = _rotation(_TILT * normals(rng, (3,)))
    bends = np.zeros((3, *_BEND_SHAPE), np.float32)
    for over_mm, amount_mm in _BENDS:
        for axis in range(3):
            bends[axis] += amount_mm * smooth_field(rng, _BEND_SHAPE, over_mm / BEND_SPACING_MM)
    return Pose(matrix=turn / scale, mirrored=bool(rng.integers(2)), bends=tuple(bends))


def warp(
    pose: Pose, shape: tuple[int, int, int], spacing_mm: float, push: tuple[np.ndarray, float, float] | None = None
) -> Brain:
    """The subject's brain on a grid of this shape and spacing, whose centre is that of the brain.

    push: (centre (3,) in mm, radius in mm, strength 0-1) of a mass that pushes the tissue around it away.
    """
    atlas = template()
    points = _points(shape, spacing_mm)
    if push is not None:
        points = _pushed(points, *push)
    bent = points + _bend(pose, shape, spacing_mm)
    place = _turned(pose.matrix.astype(np.float32), bent)
    if pose.mirrored:
        place[0] *= -1  # the atlas is not quite symmetric
    place += atlas.centre.astype(np.float32)[:, None, None, None]
    white, grey, brain, deep, surface = (
        ndimage.map_coordinates(array, place, order=1, output=np.float32)
        for array in (atlas.white, atlas.grey, atlas.brain, atlas.deep, atlas.surface)
    )
    mask = brain > 0.5
    white, grey = _sharpened(white), _sharpened(grey)
    total = np.maximum(white + grey, 1.0)
    white, grey = white / total, grey / total
    return Brain(white=white, grey=grey, fluid=1 - white - grey, deep=deep, surface=surface, mask=mask)


def _sharpened(share: np.ndarray) -> np.ndarray:
    """The share of a tissue with sharper borders. The atlas has blurred ones, since it is the mean of many brains."""
    return np.clip((share - 0.5) * 2.2 + 0.5, 0, 1)


def _points(shape: tuple[int, int, int], spacing_mm: float) -> np.ndarray:
    """The coordinates of the voxels in millimetres from the centre of the grid, (3, X, Y, Z) float32."""
    axes = [(np.arange(size, dtype=np.float32) - (size - 1) / 2) * spacing_mm for size in shape]
    return np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)


def _pushed(points: np.ndarray, centre: np.ndarray, radius_mm: float, strength: float) -> np.ndarray:
    """The positions at which the tissue at each point was before the mass grew, which are nearer to the mass."""
    offset = points - centre.astype(np.float32)[:, None, None, None]
    x, y, z = offset / np.float32(radius_mm)
    return points - np.float32(strength) * exp(-(x * x + y * y + z * z)) * offset


def _turned(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The product of (3, 3) with points (3, X, Y, Z)."""
    turned = np.empty_like(points)
    for row, (a, b, c) in zip(turned, matrix, strict=True):
        np.multiply(points[0], a, out=row)
        row += b * points[1]
        row += c * points[2]
    return turned


def _bend(pose: Pose, shape: tuple[int, int, int], spacing_mm: float) -> np.ndarray:
    """The displacement (3, X, Y, Z), in mm, on a finer grid. It is smooth over 4 mm, so linear interpolation is enough."""
    field = np.stack(pose.bends)
    for axis, size in enumerate(shape, start=1):
        known = field.shape[axis]
        place = (np.arange(size) - (size - 1) / 2) * spacing_mm / BEND_SPACING_MM + (known - 1) / 2
        low = np.clip(np.floor(place).astype(int), 0, known - 2)
        share = np.clip(place - low, 0, 1).astype(np.float32)
        share = share.reshape([-1 if a == axis else 1 for a in range(4)])
        field = np.take(field, low, axis) * (1 - share) + np.take(field, low + 1, axis) * share
    return field


def _rotation(angles: np.ndarray) -> np.ndarray:
    """The rotation (3, 3) about x, y and z in turn. angles: in radians."""
    matrix = np.eye(3)
    for axis, angle in enumerate(angles):
        a, b = [other for other in range(3) if other != axis]
        c, s = cosine(float(angle)), sine(float(angle))
        matrix[[a, b]] = c * matrix[a] - s * matrix[b], s * matrix[a] + c * matrix[b]
    return matrix
