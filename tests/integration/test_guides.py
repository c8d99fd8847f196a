"""The commands of the guides, in their order, really run: sizes are small, and the data are artificial brains."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from data.phantoms import brains

ROOT = Path(__file__).parents[2]
SMALLER = {"96": "16", "192": "32", "15GiB": "1GiB", "30": "1", "15": "1"}
TRAINING = ["--model", "unet3d", "--steps-per-epoch", "1", "--validation-steps", "1"]


def lines(guide: str) -> list[list[str]]:
    """Words of each line in its blocks of code."""
    text = (ROOT / "docs" / guide).read_text()
    blocks = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def small(words: list[str], data: Path) -> list[str]:
    """What Python gets of the same command, for this machine and a minute."""
    made = [SMALLER.get(word, re.sub(r"^~/\w+", str(data), word)) for word in words]
    if "lms3d.train" in words:
        made += TRAINING
    if "lms3d.plan" in words:
        made += TRAINING[:2]
    return [f"{word}=2" if word == "--sweep" else word for word in made[1:]]


@pytest.mark.parametrize("guide", ["first_results.md"])
def test_every_command_runs(guide, tmp_path, commands):
    data = brains.write(tmp_path / "set", cases=5, spacing_mm=8, workers=1)
    environment = {**os.environ, "LMS3D_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for words in lines(guide):
        done = commands.run(small(words, data), cwd=tmp_path, env=environment)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "comparison/report.html").exists()
    assert (tmp_path / "comparison/dice_native.png").exists()
    assert list((tmp_path / "segmented/native").glob("*.nii.gz"))


PRELUDE = """
import lms3d
{limit}
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8, activation="tanh") for _ in range(4))])
model.compile("adam", "mse", jit_compile=False)
batch = np.ones((2, 8), np.float32), np.ones((2, 8), np.float32)
dataset = tf.data.Dataset.from_tensors(batch).repeat(3)
"""


@pytest.mark.parametrize("guide", ["README.md", "docs/lms.md", "docs/from_tflms.md"])
def test_every_python_example_runs(guide, tmp_path):
    """As they stand; the model and the data that they take for granted come between the limit and the rest."""
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / guide).read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(examples).splitlines()
    limit = next(line for line in lines if "limit_memory" in line)
    script = PRELUDE.format(limit=limit) + "\n".join(line for line in lines if line != limit)
    environment = {**os.environ, "LMS3D_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
