"""Asks the organisers' own scripts; runs in the environment that `make.py` makes, not in that of this project.

ask(name, ...) gives every number of theirs that `COLUMNS` names: {region: [numbers]}.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

SETS_2023 = ("GLI", "MEN", "MET")
SETS_2024 = ("GLI", "PED", "MET", "SSA", "MEN")
CONFIGS_2026 = ("gli", "ped", "mets", "GoAT")
LARGE_MM3, OVERLAP = 27, 0.2

_PLAIN = ("Sensitivity", "Specificity", "Legacy_Dice", "Legacy_HD95", "GT_Complete_Volume")
_LESIONS = ("Num_TP", "Num_FP", "Num_FN", "LesionWise_Score_Dice", "LesionWise_Score_HD95")
_PLAIN_NSD = ("Legacy NSD @ 0.5", "Legacy NSD @ 1.0")
_LESION_NSD = ("LesionWise_Score_NSD @ 0.5", "LesionWise_Score_NSD @ 1.0")
_SEG = (
    "all_instance_tp", "all_instance_fp", "all_instance_fn", "all_instance_f1", "global_dsc", "global_nsd", "global_hd95",
    "lesionwise_dsc_mean", "lesionwise_nsd_mean", "lesionwise_hd95_mean",
)  # fmt: skip
_SIZES = tuple(f"{size}_instance_{what}" for size in ("large", "small") for what in ("tp", "fp", "fn", "f1"))

COLUMNS = {
    **{f"2023-{one}": (*_PLAIN, *_LESIONS) for one in SETS_2023},
    **{f"2024-{one}": (*_PLAIN, *_LESIONS, *_PLAIN_NSD, *_LESION_NSD) for one in SETS_2024},
    "2025-MET": (*_PLAIN, *_PLAIN_NSD),  # plain scores of raw masks, since July 2025
    **{f"2026-{one}": _SEG for one in CONFIGS_2026},
    "2026-mets": (*_SEG, *_SIZES),
}
"""Script -> its columns."""


def ask(script: str, files: tuple[str, str], folder: Path, sources: Path) -> dict[str, list[float]]:
    """The numbers of a script; {} if it fails. files: prediction and truth. sources: checkouts of BraTS-2023-Metrics and
    BraTS-2024-Metrics."""
    year, kind = script.split("-")
    with contextlib.redirect_stdout(io.StringIO()):
        if year == "2026":
            return _of_2026(files, kind, folder)
        try:
            table = _of_script(year, kind, files, folder, sources)
        except Exception as error:
            print(f"{script}: {error!r}", file=sys.stderr)
            return {}
    return {row["Labels"]: [float(row[name]) for name in COLUMNS[script]] for _, row in table.iterrows()}


def _of_script(year: str, kind: str, files: tuple[str, str], folder: Path, sources: Path) -> Any:
    with _old_libraries():
        module = _module(
            sources / f"BraTS-{'2023' if year == '2023' else '2024'}-Metrics",
            "metrics" if year == "2023" else f"metrics_{kind}",
        )
        here = os.getcwd()
        os.chdir(folder)  # the scripts write temporary files into the working directory
        try:
            found = (
                module.get_LegacyResults(*files)
                if year == "2025"
                else module.get_LesionWiseResults(*files, f"BraTS-{kind}")
            )
        finally:
            os.chdir(here)
    return found[0] if isinstance(found, tuple) else found


@cache
def _module(root: Path, name: str) -> Any:
    """Each has the surface_distance of its own repository."""
    for loaded in [one for one in sys.modules if one.split(".")[0] in ("metrics", "surface_distance")]:
        del sys.modules[loaded]
    sys.path.insert(0, str(root))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(root))


@contextlib.contextmanager
def _old_libraries() -> Iterator[None]:
    """The scripts were written for numpy 1 and pandas 1, but panoptica needs the installed versions."""
    import numpy as np
    import pandas as pd

    np.Inf = np.inf
    replace = pd.DataFrame.replace
    pd.DataFrame.append = lambda self, other: pd.concat([self, other])  # type: ignore[attr-defined]
    pd.DataFrame.replace = _replace(replace)  # type: ignore[method-assign]
    try:
        yield
    finally:
        pd.DataFrame.replace = replace  # type: ignore[method-assign]


def _replace(of_today: Callable[..., Any]) -> Callable[..., Any]:
    """DataFrame.replace of pandas 1, which passes over arrays in cells."""

    def replace(self: Any, old: float, new: float, inplace: bool = False) -> Any:
        found = self if inplace else self.copy()
        for name in found.columns:
            found[name] = [new if isinstance(cell, float) and cell == old else cell for cell in found[name]]
        return found

    return replace


@cache
def _evaluator(config: str) -> Any:
    import brats_evaluation as brats
    from panoptica import Panoptica_Evaluator

    return Panoptica_Evaluator.load_from_config(str(brats.config_path(config)))


def _of_2026(files: tuple[str, str], config: str, folder: Path) -> dict[str, list[float]]:
    """A case's numbers as the leaderboard's parser reads them."""
    import brats_evaluation as brats
    import pandas as pd

    result = brats.evaluate_single_exam(files[0], files[1], "case", _evaluator(config))
    if "error" in result:
        print(f"2026-{config}: {result['error']}", file=sys.stderr)
        return {}
    summary, table = folder / "summary.json", folder / "table.csv"
    summary.write_text(json.dumps({"metrics": [result], "missings": []}, default=float))
    if config == "mets":
        brats.parse_mets_results(str(summary), LARGE_MM3, OVERLAP, str(table))
    else:
        brats.parse_seg_results(str(summary), str(table))
    row = pd.read_csv(table).iloc[0].to_dict()
    regions = [name.removeprefix("global_dsc_") for name in row if name.startswith("global_dsc_")]
    return {
        region.upper(): [float(row[f"{name}_{region}"]) for name in COLUMNS[f"2026-{config}"]] for region in regions
    }
