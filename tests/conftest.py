"""What all tests share: hypothesis draws the same examples each time in continuous integration, elsewhere new ones; and the
user's caches are left alone; and a place to measure memory in."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of all tests: what the machine can do is measured once for all of them."""
    return tmp_path_factory.mktemp("session_cache")


@pytest.fixture(autouse=True)
def own_plans(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test meets the plans of another, which may have been made by a planner with other constants."""
    monkeypatch.setenv("LMS3D_CACHE", str(session_cache))
    yield
    shutil.rmtree(session_cache / "plans", ignore_errors=True)


@pytest.fixture(scope="module")
def in_fresh_process() -> Iterator[Callable[..., Any]]:
    """Calls a function of a module in a process that nothing else ran in: `in_fresh_process(function, *arguments)`.

    TensorFlow's CPU allocator counts whole chunks, and takes a chunk of up to twice the size rather than split it: what a
    step takes at its peak depends on the holes that earlier tests left. One process serves a whole module of tests.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield lambda function, *arguments, **named: process.submit(function, *arguments, **named).result(timeout=500)
