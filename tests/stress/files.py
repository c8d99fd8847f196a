"""Every fault at every place, in every command, and every power cut; and what must hold after each.

TRIAL-1  A killed command leaves old files or new ones, never half; so does one that meets an error.
TRIAL-2  An error of the disk is one line on stderr and exit code 2, or no harm: then the results are as in the undisturbed run.
TRIAL-3  Repeated (a training with --resume), the command ends with the results of the undisturbed run, bit for bit.
TRIAL-4  Then nothing is left under a temporary name, nor a swap folder; after an error not even before.
TRIAL-5  The same after a power cut at any moment.
TRIAL-6  The same after SIGKILL, SIGTERM or SIGINT at any moment; interrupted, a command ends with code 130 and without a traceback;
         by the signal itself if it has not begun.
TRIAL-7  The same, as after an error of the disk, if files may not grow (RLIMIT_FSIZE), no more can be opened (RLIMIT_NOFILE),
         or the disk (a tmpfs) is really full.
TRIAL-8  A wall clock that jumps by a day changes nothing.

Signals at random moments come first, then limits of files, full disks and a clock that jumps. Then each command is killed, or
refused by the disk, at every rename, fsync and unlink, and at the first, a middle and the last write of each file.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from tests.stress import command, disk, outcome, scenarios, shim
from tests.stress.harness import LEFT_OUT, Child, Died, Options, Part, Result

ACTIONS = {
    "rename": ("kill", "EIO", "ENOSPC"), "fsync": ("kill", "EIO", "ENOSPC"), "unlink": ("kill", "EIO"),
    "write": ("kill", "ENOSPC", "EIO", "EDQUOT"), "create": ("kill", "ENOSPC", "EDQUOT"), "close": ("EIO", "EDQUOT"),
    "mkdir": ("kill", "ENOSPC"), "link": ("kill", "EIO"), "truncate": ("kill", "EIO"), "rmdir": ("kill", "EIO"),
}  # fmt: skip
"""The faults of each kind of event. Before an event the process is killed, so the next one tells what follows it."""
_EACH = ("rename", "fsync", "unlink")
"""Every event of these kinds is tried; of the others, the first, a middle and the last one of each file."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LIMITS = {
    "RLIMIT_FSIZE": (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20),  # less has no room for stderr
    "RLIMIT_NOFILE": (*range(8, 40, 4), 48, 64, 96),
}
FULL = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
DAY = 86_400
_BAR = re.compile(r"\d+/[\d?]+ \d+:\d\d:\d\d")  # of progress
_SETTLED_SECONDS = 60
"""How long to wait at most until swap folders are gone: a shell, which is a process of its own, removes them."""
_OLD_SECONDS = 10
"""Swap folders are not swept before they have this age."""


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A scenario without a fault: its first files, its commands, and the files that it leaves."""

    start: Path
    end: Path
    tree: disk.Tree
    events: list[shim.Event]
    outcome: outcome.Outcome
    seconds: float

    def power_cuts(self) -> Iterator[tuple[str, disk.Tree]]:
        """The name of each power cut, and the tree that it leaves."""
        return disk.after_power_cuts(self.tree, self.events)


def rules(events: Iterable[shim.Event]) -> Iterator[str]:
    """The faults of these events, for `FAULTS_RULE`, in their order."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    files: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for event in events:
        place = event.kind, event.pattern
        counts[place] += 1
        if not event.error and event.kind in ACTIONS:
            swap = "lms3d-swap" in event.pattern  # swap files are all alike: together they are one
            files[*place, event.pattern if swap else event.name].append(counts[place])
    for (kind, pattern, _), numbers in files.items():
        whole = kind in _EACH and "lms3d-swap" not in pattern
        for number in numbers if whole else sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]}):
            yield from (f"{kind}:{pattern}:{number}:{action}" for action in ACTIONS[kind])


class NoDisk(RuntimeError):
    """A file system cannot be mounted here."""


class Bench:
    """A folder for everything, and the children that run commands. A context manager.

    given: variables of all commands."""

    def __init__(self, folder: Path, given: Mapping[str, str] = MappingProxyType({})) -> None:
        self._given = given
        self.folder, self.scratch = folder / "watched", folder / "scratch"
        self._data, self._kept = folder / "data", folder / "undisturbed"
        for path in (self.folder, self._data, self._kept):
            shutil.rmtree(path, ignore_errors=True)
        self.scratch.mkdir(parents=True, exist_ok=True)
        scenarios.make_data(self._data)
        self._library = shim.built(self.scratch)
        self._children: dict[tuple[str, ...], Child] = {}
        self.undisturbed = cache(self._undisturbed)

    def _undisturbed(self, name: str) -> Undisturbed:
        """Runs a scenario. RuntimeError if it fails, or the log has missed a byte."""
        scenario, start, end = scenarios.SCENARIOS[name], self._kept / name / "start", self._kept / name / "end"
        start.mkdir(parents=True)
        if scenario.after:
            shutil.copytree(self.undisturbed(scenario.after).end, start, dirs_exist_ok=True)
        for gone in scenario.without:
            shutil.rmtree(start / gone, ignore_errors=True)
        self._begin(start)
        tree, begun = disk.tree_of(self.folder), time.monotonic()
        if code := self._run(name):
            raise RuntimeError(f"{name}, undisturbed, ended with code {code}: {self.said}")
        seconds, events = time.monotonic() - begun, list(shim.events(self.scratch))
        self._check_log(tree, events)
        shutil.copytree(self.folder, end)
        return Undisturbed(
            start=start, end=end, tree=tree, events=events, outcome=outcome.outcome_of(end), seconds=seconds
        )

    def trials(self, name: str, options: Options) -> dict[str, Callable[[], str]]:
        """Fault -> a function that tries it and names the harm, "" if there is none.

        Faults of files and power cuts that a scenario beside this one meets, too, are left out.
        """
        undisturbed = self.undisturbed(name)
        others = [self.undisturbed(other) for other in scenarios.SCENARIOS[name].beside]
        found = self._trials_of_processes(name, options)
        known = {rule for other in others for rule in rules(other.events)}
        found |= {rule: partial(self.fault, name, rule) for rule in rules(undisturbed.events) if rule not in known}
        cuts = {_moment(at) for other in others for at, _ in other.power_cuts()}
        for at, tree in undisturbed.power_cuts():
            if _moment(at) not in cuts:
                found[f"power cut {at}"] = partial(self.power_cut, name, tree)
        return found

    def _trials_of_processes(self, name: str, options: Options) -> dict[str, Callable[[], str]]:
        moments, found = random.Random(options.seed), dict[str, Callable[[], str]]()
        for number in range(options.signals):
            kind, share = SIGNALS[number % len(SIGNALS)], moments.uniform(0, 1)
            found[f"{kind.name} at {share:.3f}"] = partial(self.signalled, name, kind, share)
        for limit, values in LIMITS.items():
            found |= {f"{limit} {most}": partial(self.limited, name, {limit: most}) for most in values}
        found |= {f"full disk at {share}": partial(self.on_full_disk, name, share) for share in FULL}
        for share, seconds in product(FULL, (-DAY, DAY)):
            found[f"clock {seconds:+} s at {share}"] = partial(self.clock_jumps, name, share, seconds)
        return found

    def fault(self, name: str, rule: str) -> str:
        """The harm of this fault at a file operation; "" if there is none."""
        before = self.undisturbed(name)
        self._begin(before.start)
        code, killed = self._run(name, rule), rule.endswith(":kill")
        if not shim.struck(self.scratch):
            return "the fault has not struck"
        return self._wrong(name, before, code, killed=killed, rule=rule)

    def power_cut(self, name: str, tree: disk.Tree) -> str:
        """The same, after a power cut that left this tree."""
        before = self.undisturbed(name)
        shutil.rmtree(self.folder)
        disk.make(tree, self.folder)
        return self._wrong_repetition(name, before)

    def signalled(self, name: str, number: int, share: float) -> str:
        """The same, after a signal once this share of the undisturbed run's time has passed: perhaps after the command's end."""
        before = self.undisturbed(name)
        self._begin(before.start)
        code = self._run(name, strike=(number, share * before.seconds))
        if code not in (0, -number, *((130,) if number != signal.SIGKILL else ())):
            return f"exit code {code} after signal {number}: {_last_line(self.said)}"
        # A worker that joblib was just starting may complain of its parent's death; the killed command itself says nothing.
        if number != signal.SIGKILL and "Traceback" in self.said:
            return f"a traceback after signal {number}: {_last_line(self.said)}"
        return self._wrong_files(before, finished=code == 0, killed=True) or self._wrong_repetition(name, before)

    def limited(self, name: str, limits: Mapping[str, int]) -> str:
        """TRIAL-7, with limits of the process."""
        before = self.undisturbed(name)
        self._begin(before.start)
        return self._wrong(name, before, self._run(name, limits=limits))

    def on_full_disk(self, name: str, share: float) -> str:
        """TRIAL-7, on a tmpfs with room for this share of what the undisturbed run adds. NoDisk if none can be mounted."""
        before = self.undisturbed(name)
        self._begin(before.start)
        there = _bytes_in(before.start)
        room = int(share * (_bytes_in(before.end) - there))
        with self._disk(before.start, there + max(4096, room)):  # no room at all would be no limit
            code = self._run(name)
            _mount("-o", "remount,size=1g", self.folder)
            return self._wrong(name, before, code)

    def clock_jumps(self, name: str, share: float, seconds: int) -> str:
        """TRIAL-8."""
        before = self.undisturbed(name)
        self._begin(before.start)
        if code := self._run(name, clock=f"{share * before.seconds}:{seconds}"):
            return f"exit code {code}: {_last_line(self.said)}"
        return self._wrong_files(before, finished=True, killed=False)

    @contextmanager
    def _disk(self, start: Path, size: int) -> Iterator[None]:
        try:
            _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.folder)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoDisk(f"no disk of its own can be mounted here: {error}") from None
        try:
            shutil.copytree(start, self.folder, dirs_exist_ok=True)
            yield
        finally:
            subprocess.run(["umount", "-l", self.folder], check=True)

    @property
    def said(self) -> str:
        """What the last command wrote to stderr."""
        return (self.scratch / "out.err").read_text(errors="replace")

    def _begin(self, start: Path) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(start, self.folder)

    def _run(self, name: str, rule: str = "", *, again: bool = False, clock: str = "", **more: Any) -> int:
        """The exit code. more: fields of `command.Command`."""
        scenario = scenarios.SCENARIOS[name]
        if scenario.modules not in self._children:
            self._children[scenario.modules] = command.child(self._library)
        environment = shim.environment(self._library, self.folder, self.scratch, rule, clock)
        one = command.Command(
            module=scenario.module,
            arguments=scenario.words(self.folder, self._data, again=again),
            environment={**environment, **self._given, "LMS3D_CACHE": str(self.folder / "cache")},
            output=self.scratch / "out",
            **more,
        )
        call = self._children[scenario.modules].call
        code = int(call(command.run, self._library, scenario.modules, one, seconds=command.MOST_SECONDS))
        self._settle()
        return code

    def _settle(self) -> None:
        """Waits until the swap folder of a killed process is removed; one that nobody removes will be old at the next start."""
        until = time.monotonic() + _SETTLED_SECONDS
        while time.monotonic() < until and _named_by_a_process(self.folder / "swap"):
            time.sleep(0.02)
        for folder in (self.folder / "swap").glob("lms3d-swap-*"):
            os.utime(folder, (time.time() - _OLD_SECONDS,) * 2)

    def _wrong(self, name: str, before: Undisturbed, code: int, *, killed: bool = False, rule: str = "") -> str:
        return (
            self._wrong_end(code, killed)
            or self._wrong_files(before, finished=code == 0, killed=killed, rule=rule)
            or self._wrong_repetition(name, before)
        )

    def _wrong_end(self, code: int, killed: bool) -> str:
        """TRIAL-2; a killed worker is an error for the command."""
        if killed and code == -signal.SIGKILL:
            return ""
        if code not in (0, 2):
            return f"exit code {code}: {_last_line(self.said)}"
        lines = [line for line in self.said.splitlines() if line.strip() and not _BAR.search(line)]
        strange = [line for line in lines if not re.match(r"lms3d: |data.prepare: error: ", line)]
        if strange or sum("error: " in line for line in lines) != (code == 2):
            return f"exit code {code} and on stderr {len(lines)} lines: {(strange or lines or [''])[-1][:300]}"
        return ""

    def _wrong_files(self, before: Undisturbed, *, finished: bool, killed: bool, rule: str = "") -> str:
        """TRIAL-1, -2, and -4."""
        try:
            found = outcome.outcome_of(self.folder)
        except ValueError as error:
            return f"after the fault {error}"
        if finished and (told := outcome.differences(found, before.outcome)):
            return f"it ended with code 0, but {told}"
        left = [] if killed or rule.startswith(("unlink", "rmdir")) else outcome.temporary_names(self.folder)
        return f"left behind by an error: {', '.join(map(shim.pattern, left))}" if left else ""

    def _wrong_repetition(self, name: str, before: Undisturbed) -> str:
        """TRIAL-3 and -4."""
        self._settle()
        if code := self._run(name, again=True):
            return f"repeated, it ended with code {code}: {_last_line(self.said)}"
        if left := outcome.temporary_names(self.folder):
            return f"left behind: {', '.join(map(shim.pattern, left))}"
        try:
            told = outcome.differences(outcome.outcome_of(self.folder), before.outcome)
        except ValueError as error:
            return f"repeated, {error}"
        return f"repeated, {told}" if told else ""

    def _check_log(self, tree: disk.Tree, events: list[shim.Event]) -> None:
        """Every byte of every file has been seen."""
        played = disk.Disk(tree)
        for event in events:
            played.apply(event)
        seen, there = played.now(), disk.tree_of(self.folder)
        if wrong := [name for name in seen.keys() | there.keys() if seen.get(name, 0) != there.get(name, 0)]:
            raise RuntimeError(f"the log of the shim has missed something of {', '.join(wrong)}")

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.end()


def _moment(power_cut: str) -> str:
    """The event after which the power cut comes, without its number."""
    return power_cut.partition(", ")[2]


def _bytes_in(folder: Path) -> int:
    """What a folder takes of a tmpfs."""
    return sum(-(-path.lstat().st_size // 4096) * 4096 for path in folder.rglob("*"))


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, timeout=30)


def _named_by_a_process(folder: Path) -> bool:
    """Whether a process has a path in `folder` among its arguments."""
    return any(f"{folder}/" in " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "nothing on stderr"


# -- the part


@cache
def _trials(options_folder: Path, name: str, signals: int, seed: int) -> dict[str, Callable[[], str]]:
    return _bench(options_folder).trials(name, Options(signals=signals, seed=seed))


_bench = cache(Bench)
"""The bench of this process."""


def _cases(options: Options, group: str) -> list[str]:
    return list(_trials(options.output / "files", group, options.signals, options.seed))


def _run(options: Options, group: str, case: str) -> Result:
    kind = next((one for one in ("power cut", "full disk") if case.startswith(one)), "")
    kind = kind or (case.split() if " " in case else case.rsplit(":", 1)[::-1])[0]
    try:
        wrong = _trials(options.output / "files", group, options.signals, options.seed)[case]()
    except NoDisk as error:
        return Result(note=f"left out: {error}", counts={LEFT_OUT: 1})
    except Died as error:
        wrong = str(error)
    return Result(wrong=wrong, counts={kind: 1})


_TRIED = [name for name, scenario in scenarios.SCENARIOS.items() if scenario.tried]
FILES = Part(groups=_TRIED, cases=_cases, run=_run)
