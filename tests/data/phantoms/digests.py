"""Digests of small phantoms and radiographs, and of the fields that they are rounded from, where a last bit still shows.

python -m tests.data.phantoms.digests: print them as JSON.
python -m tests.data.phantoms.digests FILE: commit them, after a change of voxels.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from lms3d.data.phantoms import brains, chests, exact
from lms3d.data.phantoms.brain_anatomy import draw_pose, template, warp
from lms3d.data.phantoms.brain_tumour import draw_plan
from lms3d.data.phantoms.chest_anatomy import draw_chest, draw_patient
from lms3d.data.phantoms.chest_fields import grid
from lms3d.data.phantoms.chest_findings import DRAW
from lms3d.data.phantoms.chest_patients import draw_visits


def digest(*arrays: np.ndarray) -> str:
    """The digest of types, shapes and bytes, not of files, whose compression may differ."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(f"{array.dtype.str} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:16]


def all_digests() -> dict[str, str]:
    """Name -> digest, in the order in which one is computed from another."""
    return {**_functions(), **_phantoms(), **_radiographs()}


def _functions() -> dict[str, str]:
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-9, 9, (2, 10_000)).astype(np.float32)
    return {
        "normals": digest(exact.normals(rng, (10_000,))),
        "functions": digest(exact.exp(x), exact.sine(x), exact.cosine(y), exact.direction(y, x), exact.length(x, y)),
        "blur": digest(exact.blur(x.reshape(100, 100), 1.3)),
        "smooth field": digest(exact.smooth_field(rng, (40, 50, 60), 2.7)),
        "smallest": digest(exact.smallest(np.rint(x), 4000)),
    }


def _phantoms() -> dict[str, str]:
    atlas = template()
    found = {"atlas": digest(atlas.white, atlas.grey, atlas.brain, atlas.deep)}
    for index in range(2):
        rng = np.random.default_rng([5, index])
        pose = draw_pose(rng)
        brain = warp(pose, (44, 53, 43), 4.0, (np.array([3.0, -20.0, 9.0]), 40.0, 0.3))
        plan = draw_plan(rng, brain, 4.0)
        found[f"pose {index}"] = digest(pose.matrix, *pose.bends)
        found[f"brain {index}"] = digest(brain.white, brain.grey, brain.fluid, brain.deep, brain.mask)
        found[f"plan {index}"] = digest(np.array([*plan.volumes_mm3.values(), *plan.centre_mm, plan.push]))
        found[f"phantom {index}"] = digest(*brains.make_case(5, index, 4.0))
    return found


def _radiographs() -> dict[str, str]:
    visits = draw_visits(3, 40)
    found = {"visits": hashlib.sha256(repr(visits).encode()).hexdigest()[:16]}
    rng = np.random.default_rng(7)
    chest = draw_chest(rng, draw_patient(rng, 50, True), *grid(96, (0.01, -0.02), 1.03, 0.02))
    found["chest"] = digest(chest.lung, chest.vessels, chest.attenuation)
    found |= {finding: digest(change(rng, chest)) for finding, change in DRAW.items()}
    found["radiographs"] = digest(*(chests.make_image(visit, 3, 64) for visit in visits))
    return found


if __name__ == "__main__":
    text = json.dumps(all_digests(), indent=0) + "\n"
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(text)
    else:
        print(text)
    assert "tensorflow" not in sys.modules  # the workers, which import the same, would pay for it
