"""The embedded chest data set: artificial radiographs on disk in the layout of ChestX-ray14, so that everything reads them like
real data.

    <root>/Data_Entry_2017.csv, train_val_list.txt, test_list.txt, images_001/images/ ... images_012/images/

Images are PNGs of 8 bits. One in 100 is RGBA, as some are in the real set. The findings in an image follow from its labels; the
rest (anatomy, age, sex, view, breath, pose, exposure, noise) varies independently. Visit k of patient p of seed s does not depend
on the number of images or workers, since everything random in it comes from (s, p, k). It is the same on every x86-64 machine.
`exact` says how; keep its rules in `chest_*`.

The data set is made to exercise a pipeline and to be learnt, not to study disease. No claim about real patients follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.chest_xray import png
from lms3d.data.chest_xray.collection import NO_FINDING, TABLE, TEST_LIST, TRAINING_LIST
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.phantoms.chest_anatomy import draw_chest, draw_patient
from lms3d.data.phantoms.chest_fields import bump, grid, step
from lms3d.data.phantoms.chest_findings import draw, reshape
from lms3d.data.phantoms.chest_patients import Visit, draw_visits
from lms3d.data.phantoms.exact import blur, exp, length, normal, normals, sine
from lms3d.data.workers import run_all

FOLDERS = 12
"""The number of folders: images_001 to images_012."""

HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)

_VERSION = 2  # raise it when a change here changes the pixels
_TESTED = 5  # every fifth patient is in the official test list
_RGBA = 100  # one in so many images is RGBA
_AT_ONCE = 50  # images in a piece of work


def default_directory() -> Path:
    """The folder of artificial radiographs by default."""
    return cache_directory() / "radiographs"


def write(
    directory: str | Path,
    *,
    images: int = 1800,
    size: int = 256,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder of the radiographs, for `collection.find_images`. They are made in the first call; later calls find them.

    directory: it gets one sub-folder for each (seed, images, size). size: the edge of the images in pixels.
    DataError if the folder cannot be written to, or the disk is too full.
    """
    if images < 1 or seed < 0 or not 32 <= size <= 1024:
        raise DataError(
            f"radiographs: found {images} images of {size} pixels, seed {seed}; expected at least 1 image, 32 to 1024 "
            "pixels and a seed of 0 or more; choose others"
        )
    root = Path(directory).expanduser() / f"ChestX-ray14_phantom_v{_VERSION}_seed{seed}_{images}_{size}"
    visits = draw_visits(seed, images)
    paths = [_path(root, k, images, visit) for k, visit in enumerate(visits)]
    fill = partial(_fill, root, visits, paths, seed, size, workers, progress)
    files.build_once(root, lambda: _is_complete(root, paths), fill, progress)
    return root


def make_image(visit: Visit, seed: int, size: int) -> np.ndarray:
    """The radiograph of a visit, (size, size) uint8."""
    patient = draw_patient(np.random.default_rng([seed, visit.patient, 1]), visit.age, visit.female)
    rng = np.random.default_rng([seed, visit.patient, 2, visit.number])
    breath = rng.uniform(-0.015, 0.03) + (0.035 if visit.view == "AP" else 0.0)
    lying = visit.view == "AP"
    shape = replace(
        patient,
        dome=(patient.dome[0] - breath, patient.dome[1] - breath),
        heart_ratio=patient.heart_ratio * (1.08 if lying else 1.0),  # it is nearer to the tube, so its shadow is larger
        scapulae=1.0 if lying else 0.0,
    )
    reshape(rng, shape, visit.findings)
    centre = (normal(rng, 0, 0.025), normal(rng, 0, 0.025))
    x, y = grid(size, centre, normal(rng, 1.0, 0.03), normal(rng, 0, 0.025))
    chest = draw_chest(rng, shape, x, y)
    draw(rng, chest, visit.findings)
    return _expose(rng, chest.attenuation, x, y, lying)


def _expose(rng: np.random.Generator, attenuation: np.ndarray, x: np.ndarray, y: np.ndarray, lying: bool) -> np.ndarray:
    """The film for an attenuation, (size, size) uint8: with wires and a side marker on top, scatter, noise, and a random
    exposure."""
    size = len(x)
    total = np.maximum(attenuation, 0)
    if lying and rng.random() < 0.6:
        total += _lead(rng, x, y)
    total += 0.9 * _marker(x, y, (-0.86 + normal(rng, 0, 0.02), -0.82 + normal(rng, 0, 0.03)))
    film = 1 - exp(np.float32(-normal(rng, 1.62, 0.06)) * total)
    film += normal(rng, 0.030, 0.004) * np.sqrt(1.05 - film) * normals(rng, (size, size))
    film = blur(film, 0.55 * size / 256)
    low, high = normal(rng, 0.03, 0.015), normal(rng, 0.88, 0.02)
    film = np.clip((film - low) / (high - low), 0, 1)
    film = film / (1 + np.float32(normal(rng, 0.15, 0.14)) * (1 - film))  # Schlick's gamma curve, of about 1.1
    return (255 * film + 0.5).astype(np.uint8)


def _lead(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The wire of an electrocardiogram over the chest."""
    bend = rng.uniform(-0.25, 0.25, 3)
    path = rng.uniform(-0.5, 0.5) + bend[0] * y + bend[1] * sine(3 * y + 6 * bend[2])
    return 0.16 * bump(x - path, 0.006)


def _marker(x: np.ndarray, y: np.ndarray, at: tuple[float, float]) -> np.ndarray:
    """A lead letter R on the patient's right."""
    dx, dy = (x - at[0]) / 0.045, (y - at[1]) / 0.06
    stem = step(0.25 - np.abs(dx + 0.75), 0.05) * step(1 - np.abs(dy), 0.05)
    bow = step(0.22 - np.abs(length(dx + 0.1, dy + 0.45) - 0.55), 0.05) * step(dx + 0.9, 0.05)
    leg = step(0.22 - np.abs(dx - 0.75 * dy + 0.15), 0.05) * step(dy - 0.05, 0.05) * step(1 - dy, 0.05)
    return np.maximum.reduce([stem, bow, leg])


def _fill(
    root: Path, visits: Sequence[Visit], paths: Sequence[Path], seed: int, size: int, workers: int | None,
    progress: Progress | None,
) -> None:  # fmt: skip
    """Makes the missing images, then the lists and the table. The lock is held."""
    missing = [k for k, path in enumerate(paths) if not path.is_file()]
    files.require_space(root, len(missing) * size * size)
    with files.reported_writes(root):
        for folder in {path.parent for path in paths}:
            folder.mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(folder)
    pieces = [missing[k : k + _AT_ONCE] for k in range(0, len(missing), _AT_ONCE)]
    items = [([(paths[k], visits[k], k % _RGBA == _RGBA // 2) for k in piece], seed, size) for piece in pieces]
    run_all(write_images, items, workers=workers, progress=progress, what=f"radiographs, {_AT_ONCE} at a time")
    tested = {visit.name for visit in visits if visit.patient % _TESTED == 0}
    texts = {
        TRAINING_LIST: [visit.name for visit in visits if visit.name not in tested],
        TEST_LIST: sorted(tested),
        TABLE: [HEADER, *(_row(visit, size) for visit in visits)],  # last: it marks the data set as complete
    }
    with files.reported_writes(root):
        for name, lines in texts.items():
            with files.new_file(root / name) as temporary:
                temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_images(pieces: Sequence[tuple[Path, Visit, bool]], seed: int, size: int) -> None:
    """Make and write some images; the third of each piece asks for RGBA. Runs in a worker."""
    for path, visit, colour in pieces:
        image = make_image(visit, seed, size)
        if colour:
            image = np.dstack([image, image, image, np.full_like(image, 255)])
        with files.reported_writes(path), files.new_file(path, lasting=False) as temporary:
            png.write(image, temporary)


def _row(visit: Visit, size: int) -> str:
    labels = "|".join(visit.findings) or NO_FINDING
    spacing = f"{0.139 * 2500 / size:.3f}"
    return (
        f"{visit.name},{labels},{visit.number},{visit.patient},{visit.age},{'F' if visit.female else 'M'},{visit.view},"
        f"{size},{size},{spacing},{spacing},"
    )


def _path(root: Path, k: int, images: int, visit: Visit) -> Path:
    return root / f"images_{1 + k * FOLDERS // images:03d}" / "images" / visit.name


def _is_complete(root: Path, paths: Sequence[Path]) -> bool:
    return (root / TABLE).is_file() and all(path.is_file() for path in paths)
