"""The regions of one case, predicted and true. What several columns need is computed once, when the first column asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lms3d.scoring import components, lesions, surfaces
from lms3d.scoring.lesions import LesionScores
from lms3d.scoring.rules import Rules

NAN = float("nan")

DECIMALS = 5
"""The decimals of a voxel size in mm. A header holds a rotation in float32, so that a size of 1 mm becomes 0.99999997 or
1.0000003 mm. Without rounding, the orientation of a head would decide whether a step of one voxel is within a tolerance of 1 mm.
The number is chosen, not measured: 1e-5 mm is far above that error, and far below what a scanner sets."""
PARTS = 2**10 * 5**2
"""A millimetre has so many parts of which a scanner's voxel is a whole number: tenths of a mm of the field of view over a matrix of
2^a 5^b voxels. 220 mm / 256 = 0.859375 mm lies just between two numbers of DECIMALS, so that it is not rounded to them."""
NEAR = 8e-7
"""How far a size may be from such a part, relative to a size from 1 mm on. The error in float32 is smaller, and no size of four
decimals below 2 mm is so near without being one."""


def sizes_mm(sizes: Sequence[float]) -> tuple[float, ...]:
    """Voxel sizes from an affine, rounded to the intended ones, mm."""
    found = np.asarray(sizes, float)
    parts = np.round(found * PARTS) / PARTS
    near = np.abs(found - parts) < NEAR * np.maximum(1, found)
    return tuple(np.where(near, parts, np.round(found, DECIMALS)).tolist())


class CasePair:
    """All regions of a case: masks (X, Y, Z) bool on one grid, cropped to the box around all of them."""

    def __init__(
        self,
        prediction: Mapping[str, np.ndarray],
        truth: Mapping[str, np.ndarray],
        *,
        spacing_mm: Sequence[float],
        rules: Rules,
        grid: Sequence[int] | None = None,
    ) -> None:
        """prediction, truth: region -> mask, including regions that are not scored but merge others (`Rules.needed`). The truth
        decides which regions there are. If the prediction lacks one, it counts as empty.

        grid: the shape of the whole volume, if the masks are only a part of it.
        """
        first = next(iter(truth.values()))
        nothing = np.zeros(first.shape, bool)
        marked = {region: prediction.get(region, nothing) for region in truth}
        union = np.zeros(first.shape, bool)
        for mask in (*marked.values(), *truth.values()):
            union |= mask
        self.grid = tuple(grid or first.shape)
        self.spacing_mm = sizes_mm(spacing_mm)
        self.rules = rules
        margins = components.margins(rules, self.spacing_mm)
        box = components.around(union, margins) if union.any() else tuple(slice(0, 1) for _ in first.shape)
        self.prediction = {region: mask[box] for region, mask in marked.items()}
        self.truth = {region: mask[box] for region, mask in truth.items()}

    @property
    def regions(self) -> dict[str, RegionPair]:
        """The regions that the rules score and the truth has."""
        return {region: RegionPair(case=self, region=region) for region in self.rules.regions if region in self.truth}

    @cached_property
    def true_lesions(self) -> dict[str, np.ndarray]:
        return components.lesions(self.truth, self.rules, predicted=False, spacing_mm=self.spacing_mm)

    @cached_property
    def predicted_lesions(self) -> dict[str, np.ndarray]:
        return components.lesions(self.prediction, self.rules, predicted=True, spacing_mm=self.spacing_mm)


@dataclass(frozen=True)
class RegionPair:
    """One region of a case, which the measure of a column takes."""

    case: CasePair
    region: str

    @property
    def rules(self) -> Rules:
        return self.case.rules

    @property
    def spacing_mm(self) -> tuple[float, ...]:
        return self.case.spacing_mm

    @property
    def voxel_ml(self) -> float:
        return float(np.prod(self.spacing_mm)) / 1000

    @property
    def penalty_mm(self) -> float:
        """The HD95 if one mask is empty."""
        if self.rules.penalty_mm == "diagonal":
            sizes = self.spacing_mm if self.rules.units.diagonal == "mm" else components.VOXELS
            return float(np.linalg.norm(np.multiply(self.case.grid, sizes)))
        return self.rules.penalty_mm

    @cached_property
    def prediction(self) -> np.ndarray:
        """The predicted mask on the crop, without the components that the rules remove first."""
        if self.rules.clean_prediction and self.rules.plain_cleaned:
            mask: np.ndarray = self.case.predicted_lesions[self.region] > 0
            return mask
        return self.case.prediction[self.region]

    @property
    def truth(self) -> np.ndarray:
        return self.case.truth[self.region]

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """(voxels in common, in the prediction, in the truth)."""
        common = np.count_nonzero(self.prediction & self.truth)
        return int(common), int(np.count_nonzero(self.prediction)), int(np.count_nonzero(self.truth))

    @property
    def other_voxels(self) -> int:
        """The number of voxels of the whole grid outside of the truth."""
        return int(np.prod(self.case.grid)) - self.counts[2]

    @property
    def both_empty(self) -> bool:
        return not self.counts[1] and not self.counts[2]

    @property
    def one_empty(self) -> bool:
        return not self.both_empty and not (self.counts[1] and self.counts[2])

    def nothing(self, perfect: float) -> float:
        """The score if both masks are empty: `perfect`, or NaN if the rules leave the region out (EMPTY-2)."""
        return perfect if self.rules.both_empty == "perfect" else NAN

    def hd95(self, kind: str) -> float:
        """The 95 % Hausdorff distance of one of `surfaces.KINDS`, in mm. The rules' own kind is in their `units.whole`."""
        if self.both_empty:
            return self.nothing(0.0)
        if self.one_empty or (self.rules.disjoint_is_missed and not self.counts[0]):
            return self.penalty_mm
        sizes = self._whole_sizes if kind == self.rules.hd95 else self.spacing_mm
        return surfaces.hd95(self._surfaces(kind == "area", sizes), kind)

    def nsd(self, tolerance_mm: float) -> float:
        """The normalised surface Dice, by area."""
        if self.both_empty or self.one_empty:
            return self.nothing(1.0) if self.both_empty else 0.0
        return surfaces.nsd(self._surfaces(True, self.spacing_mm), tolerance_mm)

    def counted_nsd(self, tolerance: float) -> float:
        """The normalised surface Dice, by surface voxels. The tolerance and all distances are in the rules' `units.whole`."""
        if self.both_empty or self.one_empty:
            return self.nothing(1.0) if self.both_empty else 0.0
        return surfaces.counted_nsd(self._surfaces(False, self._whole_sizes), tolerance)

    @property
    def _whole_sizes(self) -> tuple[float, ...]:
        return self.spacing_mm if self.rules.units.whole == "mm" else components.VOXELS

    @cached_property
    def _known(self) -> dict[tuple[bool, tuple[float, ...]], surfaces.Pair]:
        return {}

    def _surfaces(self, by_area: bool, sizes: tuple[float, ...]) -> surfaces.Pair:
        """The distances between both surfaces of masks that are not empty. sizes: the sides of a voxel."""
        if (by_area, sizes) not in self._known:
            self._known[by_area, sizes] = _measured(by_area, self.prediction, self.truth, sizes)
        return self._known[by_area, sizes]

    @cached_property
    def lesions(self) -> LesionScores | None:
        """The lesion-wise scores; None if the rules match no lesions."""
        if self.rules.matching == "none":
            return None
        return lesions.score(
            self.case.predicted_lesions[self.region], self.case.true_lesions[self.region], self.rules, region=self.region,
            spacing_mm=self.spacing_mm, penalty_mm=self.penalty_mm, distances=self._distances,
        )  # fmt: skip

    def _distances(self, prediction: np.ndarray, truth: np.ndarray) -> tuple[float, float, float, float]:
        """(HD95 of the rules' kind, counted NSD within 0.5 mm, 1 mm, and the shortest edge of a voxel) of a lesion."""
        kind, sizes = self.rules.hd95, self.spacing_mm
        if self.rules.units.lesions == "axes reversed":
            sizes = sizes[::-1]
        # Most tumours are one lesion: the surfaces of the region serve again.
        whole = (np.count_nonzero(prediction), np.count_nonzero(truth)) == self.counts[1:]

        def measured(by_area: bool) -> surfaces.Pair:
            return self._surfaces(by_area, sizes) if whole else _measured(by_area, prediction, truth, sizes)

        voxels = measured(False)
        hd95 = surfaces.hd95(measured(True) if kind == "area" else voxels, kind)
        half_mm, one_mm, edge = (surfaces.counted_nsd(voxels, mm) for mm in (*self.rules.tolerances_mm, min(sizes)))
        return hd95, half_mm, one_mm, edge


def _measured(by_area: bool, prediction: np.ndarray, truth: np.ndarray, sizes: Sequence[float]) -> surfaces.Pair:
    """The distances between two masks, computed on the smallest box that holds both: they do not depend on the outside."""
    box = components.around(prediction | truth)
    measure = surfaces.of_areas if by_area else surfaces.of_voxels
    return measure(prediction[box], truth[box], sizes)
