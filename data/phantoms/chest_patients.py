"""The patients of the X-ray department: their age, sex and visits, and the findings at each visit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.phantoms.exact import normal

PREVALENCE = {
    "Atelectasis": 0.24, "Cardiomegaly": 0.13, "Effusion": 0.24, "Infiltration": 0.28, "Mass": 0.15, "Nodule": 0.16,
    "Pneumonia": 0.11, "Pneumothorax": 0.15, "Consolidation": 0.13, "Edema": 0.11, "Emphysema": 0.11, "Fibrosis": 0.10,
    "Pleural_Thickening": 0.12, "Hernia": 0.08,
}  # fmt: skip
"""The share of sick patients' images that show each finding. Common findings are common in ChestX-ray14, too, but rare
ones are more frequent here: with its 0.2 % of hernias, a set of 1,800 images would hold four."""

HEALTHY = 0.42
"""The share of patients without any finding. About half of all images have none."""

_CHRONIC = {"Cardiomegaly", "Emphysema", "Fibrosis", "Hernia", "Pleural_Thickening"}  # present at every visit
_MOST_VISITS = 12
_FIRST_YEAR, _LAST_YEAR = 5, 93


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One image to be made."""

    patient: int
    number: int
    """The number of the visit, from 0: `Follow-up #`."""
    age: int
    female: bool
    view: str
    """The view: PA (standing) or AP (in bed)."""
    findings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file name, in the form of ChestX-ray14."""
        return f"{self.patient:08d}_{self.number:03d}.png"


def draw_visits(seed: int, images: int) -> list[Visit]:
    """Draws the first `images` visits of the endless row of patients of `seed`."""
    visits: list[Visit] = []
    patient = 0
    while len(visits) < images:
        patient += 1
        visits += _visits_of(np.random.default_rng([seed, patient, 3]), patient)
    return visits[:images]


def _visits_of(rng: np.random.Generator, patient: int) -> list[Visit]:
    healthy = rng.random() < HEALTHY
    count = min(_MOST_VISITS, int(rng.geometric(0.55 if healthy else 0.36)))
    age, female = int(np.clip(normal(rng, 49, 17), _FIRST_YEAR, _LAST_YEAR)), bool(rng.random() < 0.44)
    chronic = [] if healthy else [name for name in FINDINGS if name in _CHRONIC and rng.random() < PREVALENCE[name]]
    visits = []
    for number in range(count):
        acute = {
            name for name in FINDINGS if not healthy and name not in _CHRONIC and rng.random() < 0.72 * PREVALENCE[name]
        }
        findings = tuple(name for name in FINDINGS if name in acute or name in chronic)
        view = "AP" if rng.random() < 0.25 + 0.3 * bool(acute) else "PA"
        visits.append(
            Visit(
                patient=patient, number=number, age=min(_LAST_YEAR, age + number // 4), female=female, view=view,
                findings=findings,
            )
        )  # fmt: skip
    return visits
