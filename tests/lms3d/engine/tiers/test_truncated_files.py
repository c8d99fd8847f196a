"""Somebody cuts a swap file off while a step uses it: the step has a defined end, and never other numbers.

That end is a StorageError; for a tensor that is read in place, after the last look at its file, the system has no other way than
to end the process (SIGBUS). So each try is a process of its own.
"""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fork_server import Commands

SCRIPT = """
import contextlib, os, sys
import numpy as np
from lms3d.engine.tiers.disk import DiskTier
from tests.lms3d.engine.tiers.system_calls import LIBC, replaced, resident
from tests.lms3d.engine.traced import batch, by_tflms, chain

folder, mapped, cut = sys.argv[1], sys.argv[2] == "mapped", sys.argv[3]
tier = DiskTier(folder)
made = by_tflms(chain, tier, mapped=mapped)
right = [part.numpy() for part in made.function(batch())]
files = list(tier.directory.glob("*.bin"))
assert files, "nothing was swapped: the test proves nothing"

def written_and_cut(file, data, size, at):
    done = LIBC.pwrite(file, data, size, at)
    os.ftruncate(file, 0)
    return done

with contextlib.ExitStack() as stack:
    if cut != "before the step":
        stack.enter_context(replaced("pwrite", written_and_cut))
    if cut == "unnoticed":
        stack.enter_context(replaced("mincore", resident(True)))
    for file in files:
        os.truncate(file, 0)
    try:
        found = [part.numpy() for part in made.function(batch())]
    except Exception as error:
        print("error", tier.error)
    else:
        same = all(np.array_equal(one, other) for one, other in zip(right, found, strict=True))
        print("same" if same else "OTHER NUMBERS", flush=True)
"""


@pytest.fixture
def end(commands: Commands, tmp_path: Path) -> Callable[[str, str], tuple[int, str]]:
    """(kind of reading, place of the cut) -> the exit code and the words of a try."""

    def run(kind: str, cut: str) -> tuple[int, str]:
        done = commands.run(["-c", SCRIPT, tmp_path, kind, cut])
        return done.returncode, done.stdout.strip()

    return run


@pytest.mark.parametrize("kind", ["mapped", "copied"])
def test_before_a_step_the_files_are_written_again(end, kind):
    assert end(kind, "before the step") == (0, "same")


@pytest.mark.parametrize("kind", ["mapped", "copied"])
def test_after_the_write_it_is_an_error(end, kind):
    code, said = end(kind, "in the step")
    assert code == 0
    assert said.startswith("error swap folder")
    assert "the swap file ended too early" in said


def test_after_the_last_look_at_it_the_process_ends(end):
    """Or it is an error: if the process has waited for some page before, there is one more look (MAPPED-2)."""
    code, said = end("mapped", "unnoticed")
    assert (code, said) == (-signal.SIGBUS, "") or "the swap file ended too early" in said
