"""Messages reach nobody, and the work goes on."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from lms3d import console
console.say("one")
sys.stdin.readline()
console.say("two")
with console.progress() as report:
    report(1, 1, "work")
console.table("t", ["a"], [["b"]])
console.summary("s", {"a": "b"})
print("worked", file=sys.stderr)
"""


def started(stdout) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def test_whose_reader_is_gone():
    with started(subprocess.PIPE) as process:
        assert process.stdout.readline() == "one\n"
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, "lms3d: stdout: Broken pipe; going on without it\nworked\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full, which Linux has")
def test_whose_disk_is_full():
    with open("/dev/full", "w") as full, started(full) as process:
        _, told = process.communicate("\n")
    assert (process.returncode, told) == (0, "lms3d: stdout: No space left on device; going on without it\nworked\n")


def test_on_a_terminal_whose_reader_is_gone():
    """rich draws live bars there."""
    ours, theirs = os.openpty()
    with started(theirs) as process:
        os.close(theirs)
        assert os.read(ours, 3) == b"one"
        os.close(ours)
        _, told = process.communicate("\n")
    assert process.returncode == 0
    assert told.endswith("worked\n")
