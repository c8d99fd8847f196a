"""A sample of the faults that `python -m tests.stress files` tries all of: files.py says what must hold."""

from __future__ import annotations

import argparse
import random
from fnmatch import fnmatch

import pytest

from lms3d.engine.native import library
from tests.stress.files import Bench, NoDisk

OPTIONS = argparse.Namespace(signals=3, seed=0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The swap engine is the user's: commands would compile it in the watched folder, which takes longer than all else."""
    with Bench(tmp_path_factory.mktemp("bench"), {library.GIVEN: str(library.compiled())}) as bench:
        yield bench


@pytest.mark.parametrize(
    ("scenario", "pattern", "count"),
    [
        ("skipped", "*:*:*:*", 3),
        ("skipped", "power cut *", 2),
        ("shards", "*:*:*:*", 3),
        ("shards", "power cut *", 2),
        ("shards", "SIG* at *", 3),
        ("shards", "RLIMIT_FSIZE 16384", 1),
        ("shards", "RLIMIT_NOFILE 8", 1),
        ("shards", "clock -86400 s at 0.5", 1),
        # The disk is full in the middle of the second checkpoint, when best.keras is new already.
        ("train", "write:run/last/.checkpoint.*.partial.npz:155:ENOSPC", 1),
        ("predict", "write:run/predictions/cube/.BraTS20_Training_001.nii.*.partial.gz:1:kill", 1),
        ("predict with a package", "write:predictions/native/.BraTS20_Training_002.nii.*.partial.gz:1:ENOSPC", 1),
        ("evaluate label maps", "rename:scores/scores.csv:1:kill", 1),
    ],
)
def test_faults(bench, scenario, pattern, count):
    trials = bench.trials(scenario, OPTIONS)
    faults = [fault for fault in trials if fnmatch(fault, pattern) or fault == pattern]
    assert len(faults) >= count
    for fault in random.Random(5).sample(faults, count):
        assert not trials[fault](), fault


def test_a_full_disk(bench):
    try:
        assert not bench.on_full_disk("train", 0.5)
    except NoDisk as error:
        pytest.skip(str(error))
