"""Writes golden.json and scores.npz: the results of independent implementations for the seeded pairs of `pairs.py`.

    python tests/lms3d/scoring/golden/make.py --sources DIR

makes both. It makes a virtual environment of its own (they need an older numpy than this project), installs PACKAGES and asks them.
DIR has checkouts of REPOSITORIES, the organisers' own scripts (`scripts.py` asks them), under the names BraTS-2023-Metrics and
BraTS-2024-Metrics. Without --sources it makes golden.json alone, with --scripts-alone scores.npz alone. golden.json takes about ten
minutes, most of them the download of PyTorch for MONAI, and scores.npz about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGES = (
    "BraTS_evaluation==0.0.10", "panoptica==2.1.7", "medpy==0.5.2", "monai==1.5.1", "surface-distance==0.1",
    "connected-components-3d==3.29.0", "numpy<2.3", "pandas<3",
)  # fmt: skip
FOR_MASKS = ("medpy", "monai", "surface-distance", "panoptica")
REPOSITORIES = {
    "BraTS-2023-Metrics": "https://github.com/rachitsaluja/BraTS-2023-Metrics, commit 43c9052",
    "BraTS-2024-Metrics": "https://github.com/rachitsaluja/BraTS-2024-Metrics, commit f1131e3 (15 July 2025)",
}
MASKS = 800
SPACING = (1.0, 1.0, 2.0)
"""The results for the degenerate pairs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, default=None)
    parser.add_argument("--environment", type=Path, default=None, help="keep the virtual environment here")
    parser.add_argument("--scripts-alone", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        if not options.scripts_alone:
            _of_implementations()
        if options.sources:
            _of_scripts(options.sources)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = (options.environment or Path(folder)).resolve()
        python = environment / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        command = [str(python), "-W", "ignore", __file__, "--inside"]
        command += ["--sources", str(options.sources.resolve())] if options.sources else []
        command += ["--scripts-alone"] if options.scripts_alone else []
        subprocess.run(command, check=True)


def _of_implementations() -> None:
    """golden.json."""
    from importlib.metadata import version

    import pairs

    found: dict[str, Any] = {
        "versions": {name: version(name) for name in FOR_MASKS},
        "masks": [_of_masks(*pair) for pair in pairs.masks(MASKS)],
        "degenerate": [{"name": name, **_of_masks(*pair, SPACING)} for name, pair in pairs.degenerate().items()],
    }
    text = json.dumps(_rounded(found), separators=(",", ":"))
    (HERE / "golden.json").write_text(text.replace('{"digest', '\n{"digest').replace('{"name', '\n{"name') + "\n")
    print(f"{HERE / 'golden.json'}: {len(text) / 1000:.0f} kB")


def _of_masks(prediction: Any, truth: Any, spacing: tuple[float, ...]) -> dict[str, Any]:
    import pairs
    from medpy.metric import binary
    from panoptica.metrics import Metric

    row: dict[str, Any] = {"digest": pairs.digest(prediction, truth), "spacing": spacing}
    if not prediction.any() or not truth.any():
        return row
    row["monai_hd95"] = _monai_hd95(prediction, truth, spacing)
    row["medpy_hd95"] = float(binary.hd95(prediction, truth, spacing))
    row["medpy_dice"] = float(binary.dc(prediction, truth))
    row["medpy_sensitivity"] = float(binary.sensitivity(prediction, truth))
    row["medpy_precision"] = float(binary.precision(prediction, truth))
    row["medpy_specificity"] = float(binary.specificity(prediction, truth))
    row["panoptica_dice"] = float(Metric.DSC(truth, prediction))
    row["panoptica_hd95"] = float(Metric.HD95(truth, prediction, voxelspacing=spacing))
    return row


def _monai_hd95(prediction: Any, truth: Any, spacing: tuple[float, ...]) -> float:
    import torch
    from monai.metrics import compute_hausdorff_distance

    tensors = [torch.from_numpy(one.copy())[None, None] for one in (prediction, truth)]
    found = compute_hausdorff_distance(*tensors, include_background=True, percentile=95, spacing=list(spacing))
    return float(found[0, 0])


def _of_scripts(sources: Path) -> None:
    """The content of scores.npz: script -> (rows of `pairs.placed`, regions, columns) float32, with NaN for a missing result."""
    import numpy as np
    import pairs
    import scripts

    rows = list(pairs.placed())
    tasks = [(number, *row, sources) for number, row in enumerate(rows)]
    with multiprocessing.Pool(maxtasksperchild=50) as pool:
        found = list(_counted(pool.imap(_of_row, tasks), len(rows)))
    regions = {script: list(dict.fromkeys(name for row in found for name in row[script])) for script in scripts.COLUMNS}
    about = {
        "regions": regions, "columns": scripts.COLUMNS, "packages": PACKAGES, "repositories": REPOSITORIES,
        "digests": [pairs.digest(*row[1:]) for row in rows],
    }  # fmt: skip
    nothing = {script: [float("nan")] * len(names) for script, names in scripts.COLUMNS.items()}
    tables = {
        script: np.array([[row[script].get(one, nothing[script]) for one in names] for row in found], np.float32)
        for script, names in regions.items()
    }
    np.savez_compressed(HERE / "scores.npz", about=np.array(json.dumps(about)), **tables)
    print(f"{HERE / 'scores.npz'}: {(HERE / 'scores.npz').stat().st_size / 1000:.0f} kB")


def _counted(found: Iterable[Any], total: int) -> Iterator[Any]:
    for number, one in enumerate(found, start=1):
        if number % 20 == 0:
            print(f"{number}/{total}", flush=True)
        yield one


def _of_row(task: tuple[int, int, Any, Any, Path]) -> dict[str, dict[str, list[float]]]:
    """Script -> region -> numbers."""
    import scripts

    _, header, prediction, truth, sources = task
    with tempfile.TemporaryDirectory() as folder:
        files = _saved(Path(folder), header, prediction, truth)
        adults = _saved(Path(folder), header, *(labels * (labels < 4) for labels in (prediction, truth)), kind="adult")
        # The configuration of GoAT refuses a label that it does not know.
        return {
            script: scripts.ask(script, adults if script.endswith("GoAT") else files, Path(folder), sources)
            for script in scripts.COLUMNS
        }


def _saved(folder: Path, header: int, *maps: Any, kind: str = "case") -> tuple[str, str]:
    import nibabel as nib
    import pairs

    files = tuple(str(folder / f"{kind}-{side}.nii.gz") for side in ("pred", "gt"))
    for file, labels in zip(files, maps, strict=True):
        nib.save(nib.Nifti1Image(labels, pairs.headers()[header]), file)
    return files  # type: ignore[return-value]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        return None if value != value else round(value, 7)
    return value


if __name__ == "__main__":
    main()
