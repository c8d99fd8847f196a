"""Examines a data set before anything is made of it: sizes, spacings, intensities, labels, and what looks wrong.

    <cache root>/fingerprints/<fingerprint of the data>-<schema>-v3/<case>.json    one per case; an examination can be continued

Sizes are as in Table 1 of the LMS case study: the box around the brain, in voxels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from nibabel.affines import voxel_sizes
from nibabel.orientations import aff2axcodes

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.volumes.case import Case, load_images, load_truth
from lms3d.data.volumes.checksums import data_fingerprint
from lms3d.data.volumes.geometry import foreground, foreground_box
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.words import counted
from lms3d.data.workers import run_all

_REPAIR = "delete it and run again"
_PART = 1 << 20
_FORMAT = 3  # raise it when the facts change, or other files can be read
_PERCENTILES = (1, 50, 99)
_SPREAD = "_spread"  # a column of every channel
_NAMES = ("case", "problem", "axes")
_MOST_LINES = 5  # about cases that look wrong in the same way; more would tell nothing new
_LARGEST = np.finfo(np.float32).max
SWAP_MARGIN = 0.6
"""A case is suspicious if exchanging two modalities brings it nearer to the usual correlations of the data set by this share of its
distance. tests/data/brats/test_fingerprint.py shows the margin."""
LEAST_FOR_SWAPS = 5
"""The fewest cases of which the usual correlations can be computed."""
LEAST_SPREAD = 1.0
"""The least number of standard deviations between percentiles 1 and 99 of a modality. It is 4.7 for a normal distribution, and 4.4
to 6.0 for six phantoms. Below 1, a few voxels dominate the deviation, and z-scores leave the others without contrast."""


def _numbers(channels: Sequence[str]) -> set[str]:
    """The facts that every usable case has, except for labels and the names of the axes."""
    return {
        *(f"size_{axis}" for axis in "xyz"), *(f"spacing_{axis}_mm" for axis in "xyz"),
        *(f"{channel}_p{p}" for channel in channels for p in _PERCENTILES),
        *(f"{channel}_{fact}" for channel in channels for fact in ("farthest", "spread", "corner")),
        *(f"correlation_{a}_{b}" for a, b in combinations(channels, 2)),
    }  # fmt: skip


def _channels(table: pd.DataFrame) -> list[str]:
    """The channels of the cases in a table."""
    return [str(name).removesuffix(_SPREAD) for name in table.columns if str(name).endswith(_SPREAD)]


def examine(
    cases: Sequence[Case], schema: LabelSchema, *, directory: str | Path | None = None, workers: int | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A row for each case, as from `facts`. "problem" is empty, or says why the case cannot be used.

    directory: the folder of caches (default: the cache folder).
    """
    root = (Path(directory).expanduser() if directory else cache_directory()) / "fingerprints"
    folder = root / f"{data_fingerprint(cases)[:16]}-{schema.name}-v{_FORMAT}"

    def missing() -> list[Case]:
        return [case for case in cases if not _is_written(folder / f"{case.id}.json", case)]

    def fill() -> None:
        run_all(_examine, [(case, schema, folder / f"{case.id}.json") for case in missing()],
                workers=workers, progress=progress, what="examining")  # fmt: skip

    files.build_once(folder, lambda: not missing(), fill, progress, len(cases))
    return pd.DataFrame([files.read_json(folder / f"{case.id}.json", advice=_REPAIR) for case in cases])


def _is_written(path: Path, case: Case) -> bool:
    """Whether the facts of a case are on disk. False for damaged ones, which are then made again (CACHE-3)."""
    try:
        written = files.read_json(path, advice=_REPAIR, keys=("case", "problem"))
    except DataError:
        return False
    if case.problem and not written["problem"]:  # it was examined as one that need not train
        return False
    numbers = [value for name, value in written.items() if name not in _NAMES]
    named = written["case"] == case.id and all(isinstance(written.get(name, ""), str) for name in _NAMES)
    complete = written["problem"] != "" or written.keys() >= {*_numbers(case.channels), *_NAMES}
    return named and complete and all(type(value) in (int, float) and abs(value) <= _LARGEST for value in numbers)


def _examine(case: Case, schema: LabelSchema, target: Path) -> None:
    """Writes the facts of one case. Runs in a worker."""
    try:
        of_case = facts(case, schema)
    except DataError as error:
        of_case = {"case": case.id, "problem": str(error)}
    with files.reported_writes(target.parent):
        files.write_json(target, of_case)


def facts(case: Case, schema: LabelSchema) -> dict[str, Any]:
    """The facts of one case. size_*: the box around the brain, in voxels. spacing_*_mm. axes: their directions ("LPS": to the left,
    to the back, up). <label>_ml. <channel>_corner: the median of the volume's eight corners. Inside the brain:
    <channel>_p1/_p50/_p99, _farthest (the value farthest from _p50), _spread (see LEAST_SPREAD), and correlation_<a>_<b> of two
    channels."""
    images, affine = load_images(case)
    truth = load_truth(case, schema, images.shape[:3], affine)
    box, sizes = foreground_box(images), voxel_sizes(affine)
    inside = foreground(images)
    step = max(1, np.count_nonzero(inside) // 200_000)  # this is enough for percentiles and correlations
    sample = np.stack([images[..., index][inside][::step] for index in range(images.shape[3])], axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):  # an absent modality has no deviation
        correlations = np.corrcoef(sample, rowvar=False)
    corners = images[np.ix_(*([0, -1],) * 3)]
    of_case: dict[str, Any] = {"case": case.id, "problem": "", "axes": "".join(aff2axcodes(affine))}
    for axis, name in enumerate("xyz"):
        of_case |= {f"size_{name}": box.shape[axis], f"spacing_{name}_mm": round(float(sizes[axis]), 4)}
    for index, channel in enumerate(case.channels):
        values = np.percentile(sample[:, index].astype(np.float64), _PERCENTILES)  # differences of float32 may overflow
        of_case |= {f"{channel}_p{p}": round(float(v), 4) for p, v in zip(_PERCENTILES, values, strict=True)}
        of_case |= {f"{channel}_{fact}": value for fact, value in _extremes(images[..., index][inside], values).items()}
        of_case[f"{channel}_corner"] = round(float(np.median(corners[..., index])), 4)
    for (i, a), (j, b) in combinations(enumerate(case.channels), 2):
        of_case[f"correlation_{a}_{b}"] = round(float(np.nan_to_num(correlations[i, j])), 4)
    if truth is not None:
        voxel_ml = float(np.prod(sizes)) / 1000
        of_case |= {
            f"{label}_ml": round(np.count_nonzero(truth == value) * voxel_ml, 3)
            for label, value in schema.labels.items()
        }
    return of_case


def _extremes(voxels: np.ndarray, percentiles: np.ndarray) -> dict[str, float]:
    """The farthest value and the spread of a modality. voxels: (n,), those inside the brain. percentiles: its 1, 50 and 99 %."""
    low, middle, high = percentiles
    farthest = max((voxels.min(), voxels.max()), key=lambda value: abs(value - middle))
    deviation = _deviation(voxels)
    spread = (high - low) / deviation if deviation else 0.0
    return {"farthest": round(float(farthest), 4), "spread": round(float(spread), 4)}


def _deviation(voxels: np.ndarray) -> float:
    """The standard deviation of voxels (n,), in float64, of which a part is in memory at a time."""
    mean = voxels.mean(dtype=np.float64)
    parts = (voxels[start : start + _PART] for start in range(0, len(voxels), _PART))
    return math.sqrt(sum(float(np.square(part - mean).sum()) for part in parts) / len(voxels))


def suspicious_outliers(table: pd.DataFrame) -> list[str]:
    """A line for each modality of a case in which outliers spoil the mean and the deviation."""
    lines = []
    for row in table[table["problem"] == ""].to_dict("records"):
        for channel in _channels(table):
            low, high = (row[f"{channel}_p{p}"] for p in (1, 99))
            if high > low and row[f"{channel}_spread"] < LEAST_SPREAD:
                lines.append(
                    f"look at {row['case']}: {channel} has a voxel of {row[f'{channel}_farthest']:g}, where 98 % of the brain lie "
                    f"between {low:g} and {high:g}: z-scores take its contrast away; clip it"
                )
    return lines


def suspicious_corners(table: pd.DataFrame) -> list[str]:
    """A line for each case whose background is not 0."""
    lines = []
    for row in table[table["problem"] == ""].to_dict("records"):
        corners = [
            f"{row[f'{channel}_corner']:g} in {channel}" for channel in _channels(table) if row[f"{channel}_corner"]
        ]
        if corners:
            lines.append(
                f"look at {row['case']}: its corners are {', '.join(corners)}, not 0: all that is not 0 counts as brain; set its "
                "background to 0"
            )
    return lines


def suspicious_swaps(table: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Case -> the two modalities that look exchanged. Empty for fewer cases than LEAST_FOR_SWAPS.

    Correlations differ between pairs of modalities (t1 and t1ce are alike, t2 is opposite), but hardly between patients.
    """
    sound = table[table["problem"] == ""]
    if len(sound) < LEAST_FOR_SWAPS:
        return {}
    channels = _channels(table)
    matrices = {row["case"]: _matrix(row, channels) for row in sound.to_dict("records")}
    usual = np.median(list(matrices.values()), axis=0)
    swaps = {}
    for case_id, matrix in matrices.items():
        distance = partial(_distance, usual)
        own = distance(matrix)
        pairs = {pair: distance(_exchanged(matrix, *pair)) for pair in combinations(range(len(channels)), 2)}
        best = min(pairs, key=lambda pair: pairs[pair])
        if pairs[best] < (1 - SWAP_MARGIN) * own:
            swaps[case_id] = (channels[best[0]], channels[best[1]])
    return swaps


def _matrix(row: Mapping[Any, Any], channels: Sequence[str]) -> np.ndarray:
    matrix = np.eye(len(channels))
    for (i, a), (j, b) in combinations(enumerate(channels), 2):
        matrix[i, j] = matrix[j, i] = row[f"correlation_{a}_{b}"]
    return matrix


def _distance(usual: np.ndarray, matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix - usual))


def _exchanged(matrix: np.ndarray, i: int, j: int) -> np.ndarray:
    order = list(range(len(matrix)))
    order[i], order[j] = j, i
    return matrix[np.ix_(order, order)]


def as_text(table: pd.DataFrame, *, brains: bool = True) -> str:
    """The result of `examine` as text: Table 1 of the case study, spacings, label volumes, and what looks wrong.

    brains: whether all that is not 0 is brain, and channels are the four modalities.
    """
    part = "brain" if brains else "foreground"
    sound = table[table["problem"] == ""]
    lines = [f"{len(sound)} of {len(table)} cases can be used"]
    if len(sound):
        lines += ["", f"{f'{part} in voxels':<17} {'x':>4} {'y':>4} {'z':>4}"]
        sizes = sound[["size_x", "size_y", "size_z"]]
        for name in ("mean", "median", "min", "max"):
            x, y, z = (round(float(v)) for v in getattr(sizes, name)())
            lines.append(f"  {name:<15} {x:>4} {y:>4} {z:>4}")
        spacings = sound[[f"spacing_{axis}_mm" for axis in "xyz"]].drop_duplicates().to_numpy()
        lines += ["voxels of " + ", ".join(" x ".join(f"{v:g}" for v in row) + " mm" for row in spacings[:4])
                  + (f" and {len(spacings) - 4} other sizes" if len(spacings) > 4 else "")]  # fmt: skip
        lines += [_axes(sound), *_labels(sound), *_intensities(sound, part)]
    swapped = suspicious_swaps(table) if brains else {}
    swaps = [f"look at {case}: {a} and {b} may be exchanged" for case, (a, b) in swapped.items()]
    for suspicions in (swaps, suspicious_outliers(table), suspicious_corners(table)) if brains else ():
        lines += _shortened(suspicions)
    lines += [f"cannot be used: {problem}" for problem in table["problem"] if problem]
    return "\n".join(lines)


def _shortened(suspicions: Sequence[str]) -> list[str]:
    """The first lines of a kind, and the number of the others."""
    more = len(suspicions) - _MOST_LINES
    return [*suspicions[:_MOST_LINES], *([f"look at {more} more like these"] if more > 0 else [])]


def _axes(sound: pd.DataFrame) -> str:
    """A line about the axes. Cases are not turned to one frame, so a network sees different orientations, unless symmetries hide
    them."""
    counts = sound["axes"].value_counts()
    if len(counts) == 1:
        return f"axes {counts.index[0]}"
    directions = ", ".join(f"{axes} in {counted(count, 'case')}" for axes, count in counts.items())
    return f"look at the axes: {directions}; cases stay as they are, so train with all symmetries (the default), or turn the files"


def _labels(sound: pd.DataFrame) -> list[str]:
    names = [name for name in sound.columns if name.endswith("_ml")]
    if not names:
        return ["no label maps"]
    lines = ["", "labels in ml      median      least       most   cases with it"]
    for name in names:
        values = sound[name].dropna()
        present = values[values > 0]
        median, low, high = (present.median(), present.min(), present.max()) if len(present) else (0.0, 0.0, 0.0)
        lines.append(f"  {name[:-3]:<12} {median:>10.2f} {low:>10.2f} {high:>10.2f}   {len(present)} of {len(values)}")
    return lines


def _intensities(sound: pd.DataFrame, part: str) -> list[str]:
    lines = ["", f"{f'intensities in the {part}, medians over the cases':<50} {'1 %':>6} {'50 %':>10} {'99 %':>10}"]
    for channel in _channels(sound):
        low, middle, high = (sound[f"{channel}_p{p}"].median() for p in _PERCENTILES)
        lines.append(f"  {channel:<45} {low:>10.4g} {middle:>10.4g} {high:>10.4g}")
    return lines
