"""Packages that only some features need: their tests are skipped without them, but not where all are promised."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def needed(*packages: str, extra: str) -> None:
    """Skips the test if a package is missing; fails it under LMS3D_CI, which `.ci/run` sets. extra: of lms3d, that brings them."""
    if missing := [name for name in packages if find_spec(name) is None]:
        told = f"{', '.join(missing)}: not installed; pip install 'lms3d[{extra}]'"
        (pytest.fail if os.environ.get("LMS3D_CI") else pytest.skip)(told)
