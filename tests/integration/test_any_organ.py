"""The commands of docs/any_organ.md, in their order, on small artificial abdomens, under a limit that needs LMS."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from lms3d.data.phantoms import abdomens
from tests.caches import private_cache
from tests.integration.test_guides import ROOT, lines

SMALLER = {"160x160x96": "32x32x16", "6GiB": "20MiB"}
TRAINED = "--preset S --levels 2 --epochs 1 --steps-per-epoch 1 --validation-steps 1"


def small(words: list[str], sets: dict[str, Path]) -> list[str]:
    """The same command for a minute, without "python"."""
    line = [SMALLER.get(word) or re.sub(r"^~/(\w+)", lambda found: str(sets[found[1]]), word) for word in words[1:]]
    more = TRAINED.split() if "lms3d.train" in line else []
    return [line[0], "tests.small", *line[1:], *more]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_runs(tmp_path, commands):
    one, two = (abdomens.write(tmp_path / str(n), cases=4, channels=n, shape=(40, 32, 16), workers=1) for n in (1, 2))
    shutil.copytree(one / "labelsTr", tmp_path / "nnunet_output")
    sets = {"Dataset017_Abdomen": one, "Task09_Spleen": two}
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path / "cache")), "PYTHONPATH": str(ROOT)}
    said = []
    for words in lines("any_organ.md"):
        done = commands.run(small(words, sets), cwd=tmp_path, env=environment)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        said.append(done.stdout)
    assert "start anew: stem_conv/kernel" in said[-1]  # it reads another number of channels
    report = json.loads((tmp_path / "runs/abdomen/lms_plan.json").read_text())["train"]["report"]
    assert report["unedited_limit_bytes"] > report["limit_bytes"] >= report["measured_peak_bytes"]
    again = sorted((tmp_path / "again/native").iterdir())
    assert [path.name for path in again] == [f"abdomen_00{n}.nii.gz" for n in (1, 2, 3, 4)]
    image, labels = (nibabel.load(path) for path in (one / "imagesTr/abdomen_001_0000.nii.gz", again[0]))
    np.testing.assert_array_equal(image.affine, labels.affine)
    assert labels.shape == image.shape
    table = (tmp_path / "comparison/scores.csv").read_text()
    assert {"nnunet_output", "abdomen"} <= {line.split(",")[0] for line in table.splitlines()}
    assert (tmp_path / "comparison/dice_native.png").is_file()
