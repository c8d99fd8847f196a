"""Writes golden.json: what independent implementations say of the seeded pairs of `pairs.py`.

    python tests/lms3d/scoring/golden/make.py --sources DIR

with --keep-label-maps leaves the numbers of label maps, which need DIR, as they are, and makes those of masks anew. It
makes a virtual environment of its own (they need an older numpy than this project), installs PACKAGES and asks them. DIR has
checkouts of https://github.com/rachitsaluja/BraTS-2023-Metrics and BraTS-2024-Metrics under those names; without it the
challenges of those years are left out. Takes about ten minutes, most of them the download of PyTorch for MONAI.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGES = (
    "BraTS_evaluation==0.0.10", "panoptica==2.1.7", "medpy==0.5.2", "monai==1.5.1", "surface-distance==0.1",
    "connected-components-3d==3.29.0", "numpy<2.3", "pandas<3",
)  # fmt: skip
MASKS, LABEL_MAPS = 800, 40
SPACING = (1.0, 1.0, 2.0)
"""Of the degenerate pairs."""
SETS_2024 = ("GLI", "PED", "MET", "SSA", "MEN")
SETS_2023 = ("GLI", "MET")
CONFIGS_2026 = ("gli", "ped", "mets")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, default=None)
    parser.add_argument("--environment", type=Path, default=None, help="keep the virtual environment here")
    parser.add_argument("--keep-label-maps", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        _write(options.sources, options.keep_label_maps)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = (options.environment or Path(folder)).resolve()
        python = environment / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        command = [str(python), __file__, "--inside"]
        command += ["--sources", str(options.sources.resolve())] if options.sources else []
        command += ["--keep-label-maps"] if options.keep_label_maps else []
        subprocess.run(command, check=True)


def _write(sources: Path | None, keep_label_maps: bool) -> None:
    from importlib.metadata import version

    import pairs

    found: dict[str, Any] = {
        "versions": {name.split("=")[0].split("<")[0]: version(name.split("=")[0].split("<")[0]) for name in PACKAGES},
        "masks": [_of_masks(*pair) for pair in pairs.masks(MASKS)],
        "degenerate": [{"name": name, **_of_masks(*pair, SPACING)} for name, pair in pairs.degenerate().items()],
        "label_maps": json.loads((HERE / "golden.json").read_text())["label_maps"] if keep_label_maps else [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, (prediction, truth) in enumerate(pairs.label_maps(0 if keep_label_maps else LABEL_MAPS)):
            print(f"{number + 1}/{LABEL_MAPS}", flush=True)
            found["label_maps"].append(
                {"digest": pairs.digest(prediction, truth), **_of_labels(prediction, truth, Path(folder), sources)}
            )
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


def _of_labels(prediction: Any, truth: Any, folder: Path, sources: Path | None) -> dict[str, Any]:
    files = []
    for name, labels in (("pred", prediction), ("gt", truth)):
        import nibabel as nib
        import numpy as np

        files.append(str(folder / f"{name}.nii.gz"))
        nib.save(nib.Nifti1Image(labels, np.eye(4)), files[-1])
    row: dict[str, Any] = {}
    for config in CONFIGS_2026:
        row[f"2026-{config}"] = _of_2026(files, config, folder)
    if sources is not None:
        for kind in SETS_2023:
            row[f"2023-{kind}"] = _reference(sources / "BraTS-2023-Metrics", "metrics", kind, files, folder)
        for kind in SETS_2024:
            row[f"2024-{kind}"] = _reference(sources / "BraTS-2024-Metrics", f"metrics_{kind}", kind, files, folder)
    return row


def _of_2026(files: list[str], config: str, folder: Path) -> Any:
    """Region -> what the leaderboard's parser makes of a case."""
    import brats_evaluation as brats
    import pandas as pd
    from panoptica import Panoptica_Evaluator

    evaluator = Panoptica_Evaluator.load_from_config(str(brats.config_path(config)))
    result = brats.evaluate_single_exam(files[0], files[1], "case", evaluator)
    summary, table = folder / "summary.json", folder / "table.csv"
    summary.write_text(json.dumps({"metrics": [result], "missings": []}, default=float))
    if config == "mets":
        brats.parse_mets_results(str(summary), 27, 0.2, str(table))
    else:
        brats.parse_seg_results(str(summary), str(table))
    row = pd.read_csv(table).iloc[0].to_dict()
    kept = ("all_instance_tp", "all_instance_fp", "all_instance_fn", "all_instance_f1", "global_dsc", "global_hd95",
            "lesionwise_dsc_mean", "lesionwise_hd95_mean")  # fmt: skip
    return {name: value for name, value in row.items() if name.startswith(kept)}


def _reference(root: Path, module: str, kind: str, files: list[str], folder: Path) -> Any:
    """Region -> numbers of a repository's own script, run in the folder of its temporary files."""
    import importlib

    import numpy as np
    import pandas as pd

    # The scripts were written for numpy 1 and pandas 1.
    np.Inf = np.inf
    pd.DataFrame.append = lambda self, other: pd.concat([self, other])  # type: ignore[attr-defined]
    pd.DataFrame.replace = _replace  # type: ignore[assignment]
    here = os.getcwd()
    for name in [name for name in sys.modules if name.split(".")[0] in ("metrics", "surface_distance")]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    try:
        os.chdir(folder)
        run: Callable[..., Any] = importlib.import_module(module).get_LesionWiseResults
        found = run(files[0], files[1], f"BraTS-{kind}")
    finally:
        os.chdir(here)
        sys.path.remove(str(root))
    table = found[0] if isinstance(found, tuple) else found
    kept = ["Num_TP", "Num_FP", "Num_FN", "Legacy_Dice", "LesionWise_Score_Dice", "LesionWise_Score_HD95"]
    return {row["Labels"]: [float(row[name]) for name in kept] for _, row in table.iterrows()}


def _replace(self: Any, old: float, new: float, inplace: bool = False) -> Any:
    """DataFrame.replace of pandas 1, which passes over arrays in cells."""
    found = self if inplace else self.copy()
    for name in found.columns:
        found[name] = [new if isinstance(cell, float) and cell == old else cell for cell in found[name]]
    return found


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
