"""What each test took when that was last recorded: `make quick` leaves slow tests out, and workers begin with the longest files.

`make test PYTEST_ARGS=--record-durations` writes `durations.json`: file within tests/ -> test without its parameters -> seconds.
A file's shorter tests stand together under REST. Long set-ups stand under SHARED: the first test of a file waits for them, and if
that is left out, the next one. Slow tests that did not run keep their seconds. It is the record of one machine: nothing but the
choice and the order of tests depends on it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from lms3d.atomic_files import write_json

FILE = Path(__file__).with_name("durations.json")
SLOW_SECONDS = 1.0
"""A test of this many seconds, with all its parameters, is slow."""
REST, SHARED = "the rest", "what all share"
SHARED_SECONDS = 3.0
"""A set-up of this many seconds belongs to a file, whose tests are all slow."""

Durations = Mapping[str, Mapping[str, float]]
Taken = tuple[str, str, float]
"""Name of a test, phase ("setup", "call" or "teardown") and seconds."""


def recorded() -> Durations:
    """File -> test -> seconds."""
    durations: Durations = json.loads(FILE.read_text())
    return durations


def place(nodeid: str) -> tuple[str, str]:
    """The file and the test that pytest's name of a test means, without its parameters."""
    file, _, test = nodeid.removeprefix("tests/").partition("::")
    return file, test.partition("[")[0]


def is_slow(durations: Durations, nodeid: str) -> bool:
    """Whether a test took SLOW_SECONDS, or its file shares a long set-up. A test that was not recorded did not."""
    file, test = place(nodeid)
    known = durations.get(file, {})
    return SHARED in known or known.get(test, 0.0) >= SLOW_SECONDS


def file_seconds(durations: Durations, nodeid: str) -> float:
    """What all tests in the file of this one took. A file that was not recorded takes no time."""
    return sum(durations.get(place(nodeid)[0], {}).values())


def merged(before: Durations, taken: Iterable[Taken], files: set[str]) -> Durations:
    """The durations before, with those that were `taken` now. files: all that there are."""
    seconds: dict[str, Counter[str]] = defaultdict(Counter)
    for nodeid, phase, duration in taken:
        file, test = place(nodeid)
        seconds[file][SHARED if phase == "setup" and duration >= SHARED_SECONDS else test] += duration
    after: dict[str, dict[str, float]] = {}
    for file in sorted(files & (before.keys() | seconds.keys())):
        measured = {*seconds[file], REST, SHARED} if file in seconds else set()
        tests = {test: old for test, old in before.get(file, {}).items() if test not in measured}
        slow = tests | {test: round(new, 1) for test, new in seconds[file].items() if new >= SLOW_SECONDS}
        rest = sum(new for new in seconds[file].values() if new < SLOW_SECONDS)
        slow |= {REST: round(rest, 1)} if rest >= SLOW_SECONDS else {}
        if slow:
            after[file] = dict(sorted(slow.items()))
    return after


def record(taken: Iterable[Taken]) -> None:
    """Writes the file anew."""
    files = {str(path.relative_to(FILE.parent)) for path in FILE.parent.rglob("test_*.py")}
    before = recorded() if FILE.exists() else {}
    write_json(FILE, merged(before, taken, files))
