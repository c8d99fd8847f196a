"""What `--examine` proposes: the finest grid whose whole volumes fit."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lms3d.data.segmentation.spacing import Sizes
from lms3d.device import memory
from lms3d.tasks import chosen
from lms3d.tasks.segmentation import proposal
from tests.data.small_volumes import write_nnunet

SIZES = Sizes(shapes=np.array([(300, 280, 40), (320, 320, 32)]), spacings_mm=np.array([(0.8, 0.8, 3.0)] * 2))
OPTIONS = chosen({"task": "segmentation", "data": "set"})


def test_coarser_grids_grow_along_the_finest_axes_first():
    grids = proposal.wholes(SIZES)
    assert (grids[0].spacing_mm, grids[0].box) == ((0.8, 0.8, 3.0), (320, 320, 40))
    assert (grids[3].spacing_mm, grids[3].box) == ((1.6, 1.6, 3.0), (160, 160, 40))
    assert grids[-1].spacing_mm == (4.8, 4.8, 4.8)


@pytest.mark.parametrize("most", [10**9, 320 * 320 * 40, 160 * 160 * 40, 100 * 100 * 40, 1])
def test_the_finest_that_fits_is_found_with_few_plans(most):
    grids, asked = proposal.wholes(SIZES), []

    def needs(grid):
        asked.append(grid)
        return None if np.prod(grid.box) > most else 1000

    found = proposal.finest(grids, needs)
    expected = next((grid for grid in grids if np.prod(grid.box) <= most), None)
    assert (found and found.grid) == expected
    assert len(asked) <= 4


def test_the_command_is_printed_and_patches_if_whole_volumes_are_coarse():
    grids = proposal.wholes(SIZES)
    told = "\n".join(proposal.lines(proposal.Fitting(grid=grids[3], without_bytes=1 << 30), grids, OPTIONS, 4 << 30))
    assert "--box 160x160x40 --spacing 1.6x1.6x3 --batch-size 4 --memory-limit 4.00GiB" in told
    assert "--spacing 0.8x0.8x3 --patch 160x160x40" in told
    assert (
        "or patches" not in proposal.lines(proposal.Fitting(grid=grids[0], without_bytes=1 << 40), grids, OPTIONS, 1)[0]
    )
    assert "raise --memory-limit" in proposal.lines(None, grids, OPTIONS, 1 << 20)[0]


def test_the_command_can_be_pasted_whatever_the_folder_is_called():
    grids = proposal.wholes(SIZES)
    options = replace(OPTIONS, data=Path("my data/Task 1"))
    command = proposal.lines(proposal.Fitting(grid=grids[0], without_bytes=1 << 30), grids, options, 4 << 30)[1]
    words = shlex.split(command)
    assert words[words.index("--data") + 1] == "my data/Task 1"


def test_without_a_limit_it_asks_the_device_and_tensorflow_says_nothing(tmp_path, capfd, monkeypatch):
    def loud():
        os.write(2, b"oneDNN custom operations are on")
        return 1 << 30

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setattr(memory, "device_memory_bytes", loud)
    monkeypatch.setattr(proposal, "_needs", lambda *_: lambda grid: 1 << 20)
    assert proposal.main([str(write_nnunet(tmp_path / "Dataset007_X", cases=1))]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("proposal for 1.00GiB: whole volumes of 1x1x2 mm")
    assert err == ""
