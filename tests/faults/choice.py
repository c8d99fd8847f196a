"""Which faults are tried, from the log of an undisturbed run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.faults.shim import Event

ACTIONS = {
    "rename": ("kill", "EIO", "ENOSPC"), "fsync": ("kill", "EIO", "ENOSPC"), "unlink": ("kill", "EIO"),
    "write": ("kill", "ENOSPC", "EIO", "EDQUOT"), "create": ("kill", "ENOSPC", "EDQUOT"), "close": ("EIO", "EDQUOT"),
    "mkdir": ("kill", "ENOSPC"), "link": ("kill", "EIO"), "truncate": ("kill", "EIO"), "rmdir": ("kill", "EIO"),
}  # fmt: skip
"""What may befall each kind of event. Before an event the process is killed, so the next one tells what follows it."""

_EACH = ("rename", "fsync", "unlink")
"""Of these every one; of the others the first, the middle and the last one of each file."""


def rules(events: Iterable[Event]) -> Iterator[str]:
    """For `FAULTS_RULE`, in the order of the events."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    files: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for event in events:
        place = event.kind, event.pattern
        counts[place] += 1
        if not event.error and event.kind in ACTIONS:
            files[*place, _file(event)].append(counts[place])
    for (kind, pattern, _), numbers in files.items():
        whole = kind in _EACH and "lms3d-swap" not in pattern
        for number in numbers if whole else sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]}):
            yield from (f"{kind}:{pattern}:{number}:{action}" for action in ACTIONS[kind])


def _file(event: Event) -> str:
    """Swap files are all alike: together they are one."""
    return event.pattern if "lms3d-swap" in event.pattern else event.name
