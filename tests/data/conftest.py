"""Small data sets for the tests of `data`: random brains, and a coarse phantom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lms3d.data.brats import cache, layouts
from lms3d.data.brats.preprocess import cube
from lms3d.data.phantoms import brains
from tests.data.small_data import random_case, write_case


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """Five random cases in the layout of BraTS 2020."""
    for number in range(1, 6):
        write_case(tmp_path / "set" / f"BraTS20_Training_{number:03d}", random_case(number))
    return tmp_path / "set"


@pytest.fixture
def small_cache(data_set: Path, tmp_path: Path) -> cache.Cache:
    """The random cases as cubes of 16^3."""
    cases, schema = layouts.find_cases(data_set)
    return cache.build(cases, schema, cube(16), directory=tmp_path / "cache", workers=1)


@pytest.fixture(scope="session")
def coarse_phantom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three phantoms on a grid of 4 mm."""
    return brains.write(tmp_path_factory.mktemp("phantom"), cases=3, seed=5, workers=1, spacing_mm=4.0)


@pytest.fixture
def record() -> tuple[list[tuple[int, int, str]], Callable[[int, int, str], None]]:
    """A list of progress calls, and the function that fills it."""
    calls: list[tuple[int, int, str]] = []
    return calls, lambda done, total, what: calls.append((done, total, what))
