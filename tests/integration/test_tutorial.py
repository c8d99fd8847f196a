"""The cells of docs/tutorial.ipynb run as they stand, one after the other; the notebook holds no outputs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.caches import private_cache

ROOT = Path(__file__).parents[2]
CELLS = [
    cell for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
]


def test_no_outputs_are_kept():
    assert CELLS
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS)


def test_every_cell_runs_and_a_dice_table_comes_out(tmp_path):
    script = "\n\n".join("".join(cell["source"]) for cell in CELLS)
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path / "cache")), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\| .*\| WT \|", done.stdout, re.MULTILINE), done.stdout
    assert list((tmp_path / "tutorial/run/predictions/native").glob("*.nii.gz"))
    statistics = (tmp_path / "tutorial/run/lms_stats.csv").read_text()
    assert "swapped_out_bytes" in statistics
