"""One region of one case, predicted and true: what several columns need is worked out once, when the first asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lms3d.scoring import components, lesions, surfaces
from lms3d.scoring.lesions import LesionScores
from lms3d.scoring.rules import Rules

NAN = float("nan")


class CasePair:
    """All regions of a case: masks of one and the same grid (X, Y, Z) bool, cropped to what any of them holds."""

    def __init__(
        self,
        prediction: Mapping[str, np.ndarray],
        truth: Mapping[str, np.ndarray],
        *,
        spacing_mm: Sequence[float],
        rules: Rules,
        grid: Sequence[int] | None = None,
    ) -> None:
        """prediction, truth: region -> mask, also of regions that are not scored but merge others (`Rules.needed`). Those of the
        truth count: of one that the prediction does not have nothing is marked.

        grid: shape of the whole volume, where the masks are a part of it already.
        """
        first = next(iter(truth.values()))
        nothing = np.zeros(first.shape, bool)
        marked = {region: prediction.get(region, nothing) for region in truth}
        union = np.zeros(first.shape, bool)
        for mask in (*marked.values(), *truth.values()):
            union |= mask
        # The crop must not stop a dilation that the grid itself does not stop.
        margin = max([rules.dilation, *rules.dilation_of.values()]) + 1
        box = components.around(union, margin) if union.any() else tuple(slice(0, 1) for _ in first.shape)
        self.grid = tuple(grid or first.shape)
        self.spacing_mm = tuple(float(size) for size in spacing_mm)
        self.rules = rules
        self.prediction = {region: mask[box] for region, mask in marked.items()}
        self.truth = {region: mask[box] for region, mask in truth.items()}

    @property
    def regions(self) -> dict[str, RegionPair]:
        """Those that the rules score, as far as the truth has them."""
        return {region: RegionPair(case=self, region=region) for region in self.rules.regions if region in self.truth}

    @cached_property
    def true_lesions(self) -> dict[str, np.ndarray]:
        return components.lesions(self.truth, self.rules, predicted=False)

    @cached_property
    def predicted_lesions(self) -> dict[str, np.ndarray]:
        return components.lesions(self.prediction, self.rules, predicted=True)


@dataclass(frozen=True)
class RegionPair:
    """What the measure of a column is given."""

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
        """HD95 where one mask is empty."""
        if self.rules.penalty_mm == "diagonal":
            return float(np.linalg.norm(np.multiply(self.case.grid, self.spacing_mm)))
        return self.rules.penalty_mm

    @cached_property
    def prediction(self) -> np.ndarray:
        """Mask on the crop, without the components that the rules remove first."""
        if self.rules.clean_prediction:
            mask: np.ndarray = self.case.predicted_lesions[self.region] > 0
            return mask
        return self.case.prediction[self.region]

    @property
    def truth(self) -> np.ndarray:
        return self.case.truth[self.region]

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Voxels in common, in the prediction, in the truth."""
        common = np.count_nonzero(self.prediction & self.truth)
        return int(common), int(np.count_nonzero(self.prediction)), int(np.count_nonzero(self.truth))

    @property
    def other_voxels(self) -> int:
        """Voxels of the whole grid that the truth leaves out."""
        return int(np.prod(self.case.grid)) - self.counts[2]

    @property
    def both_empty(self) -> bool:
        return not self.counts[1] and not self.counts[2]

    @property
    def one_empty(self) -> bool:
        return not self.both_empty and not (self.counts[1] and self.counts[2])

    def nothing(self, perfect: float) -> float:
        """What a score is where both masks are empty."""
        return perfect if self.rules.both_empty == "perfect" else NAN

    def hd95(self, kind: str) -> float:
        """In mm, of one of `surfaces.KINDS`."""
        if self.both_empty:
            return self.nothing(0.0)
        if self.one_empty or (self.rules.disjoint_is_missed and not self.counts[0]):
            return self.penalty_mm
        return surfaces.hd95(self.areas if kind == "area" else self.voxels, kind)

    def nsd(self, tolerance_mm: float) -> float:
        if self.both_empty or self.one_empty:
            return self.nothing(1.0) if self.both_empty else 0.0
        return surfaces.nsd(self.areas, tolerance_mm)

    @cached_property
    def voxels(self) -> surfaces.Pair:
        """Distances between surface voxels; of masks that are not empty."""
        return surfaces.of_voxels(*self._boxed(self.prediction, self.truth), self.spacing_mm)

    @cached_property
    def areas(self) -> surfaces.Pair:
        """Distances between weighted surfaces; of masks that are not empty."""
        return surfaces.of_areas(*self._boxed(self.prediction, self.truth), self.spacing_mm)

    @cached_property
    def lesions(self) -> LesionScores | None:
        """None where the rules match none."""
        if self.rules.matching == "none":
            return None
        return lesions.score(
            self.case.predicted_lesions[self.region], self.case.true_lesions[self.region], self.rules, region=self.region,
            voxel_mm3=1000 * self.voxel_ml, penalty_mm=self.penalty_mm, distance=self._distance,
        )  # fmt: skip

    def _distance(self, prediction: np.ndarray, truth: np.ndarray) -> float:
        """HD95 of a lesion, of the rules' kind."""
        kind = self.rules.hd95
        # Most tumours are one lesion: then its surfaces are those of the region.
        if (np.count_nonzero(prediction), np.count_nonzero(truth)) == self.counts[1:]:
            return surfaces.hd95(self.areas if kind == "area" else self.voxels, kind)
        measure = surfaces.of_areas if kind == "area" else surfaces.of_voxels
        return surfaces.hd95(measure(*self._boxed(prediction, truth), self.spacing_mm), kind)

    @staticmethod
    def _boxed(prediction: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both, cropped to the smallest box that holds them: distances inside do not depend on the outside."""
        box = components.around(prediction | truth)
        return prediction[box], truth[box]
