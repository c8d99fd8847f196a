"""The scripts in examples/ run, at toy size, and LMS works in them as they say."""

from __future__ import annotations

import re

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image_2d", "custom_step"])
def test_an_example_trains_and_reports(commands, name):
    done = commands.run(["-m", f"examples.{name}", "16"])
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    assert "step time with this plan (predicted)" in done.stdout


@pytest.mark.slow
def test_the_volumes_fit_below_what_the_step_takes(commands):
    done = commands.run(["-m", "examples.volume_3d", "16"])
    assert done.returncode == 0, done.stderr
    numbers = re.findall(r"\d+(?:,\d{3})+", done.stdout)
    without, floor, limit, peak = (int(number.replace(",", "")) for number in numbers)
    assert peak <= limit < without
    assert floor <= limit
