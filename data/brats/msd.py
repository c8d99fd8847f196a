"""Find the cases of the Medical Segmentation Decathlon, Task01_BrainTumour: one 4D file per case."""

from __future__ import annotations

from pathlib import Path

from data.brats.case import Case

VOLUMES = {"flair": 0, "t1": 1, "t1ce": 2, "t2": 3}
"""Channel -> index on the fourth axis, as dataset.json of Task01 lists them."""

_FOLDERS = {"imagesTr": "labelsTr", "imagesTs": None}
"""Image folder -> folder of its label maps."""


def is_task01(root: Path) -> bool:
    """Whether `root` is Task01_BrainTumour, or the folder around it."""
    return _home(root) is not None


def find(root: Path) -> list[Case]:
    """The training cases; the test cases, which have no truth, where there are no training cases."""
    home = _home(root)
    if home is None:
        return []
    for images, labels in _FOLDERS.items():
        cases = [
            Case(
                id=path.name.split(".nii")[0],
                images=dict.fromkeys(VOLUMES, path),
                truth=_truth(home, labels, path.name),
                volumes=VOLUMES,
            )
            for path in sorted((home / images).glob("BRATS_*.nii*"))
        ]
        if cases:
            return cases
    return []


def _home(root: Path) -> Path | None:
    for folder in (root, root / "Task01_BrainTumour"):
        if any((folder / name).is_dir() for name in _FOLDERS):
            return folder.absolute()
    return None


def _truth(home: Path, folder: str | None, name: str) -> Path | None:
    path = home / folder / name if folder else None
    return path if path and path.is_file() else None
