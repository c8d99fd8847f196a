"""The cells of docs/tutorial.ipynb run one after the other, with a small network (`tests.small`) for the one that they train; the
notebook holds no outputs."""

import json
import os
import re
from pathlib import Path

from tests.caches import private_cache

ROOT = Path(__file__).parents[2]
CELLS = [
    cell for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
]
TRAIN = 'run("lms3d.train"'


def test_no_outputs_are_kept():
    assert CELLS
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS)


def test_every_cell_runs_and_a_dice_table_comes_out(tmp_path, commands):
    script = "\n\n".join("".join(cell["source"]) for cell in CELLS)
    assert script.count(TRAIN) == 1
    script = script.replace(TRAIN, f'run("tests.small", {TRAIN[4:]}')
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path / "cache")), "PYTHONPATH": str(ROOT)}
    done = commands.run(["-c", script], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\| .*\| WT \|", done.stdout, re.MULTILINE), done.stdout
    assert list((tmp_path / "tutorial/run/predictions/native").glob("*.nii.gz"))
    statistics = (tmp_path / "tutorial/run/lms_stats.csv").read_text()
    assert "swapped_out_bytes" in statistics
