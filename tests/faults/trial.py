"""One fault, and what must hold after it.

TRIAL-1  A killed command leaves old files or new ones, never half; so does one that meets an error.
TRIAL-2  An error of the disk is one line on stderr and exit code 2, or no harm: then the results are those of the undisturbed run.
TRIAL-3  Repeated (a training with --resume), the command ends with the results of the undisturbed run, bit for bit.
TRIAL-4  Then nothing is left under a temporary name, nor a swap folder; after an error not even before.
TRIAL-5  The same after a power cut at any moment.
TRIAL-6  The same after SIGKILL, SIGTERM or SIGINT at any moment; interrupted, a command ends with code 130 and without a traceback;
         by the signal itself where it has not begun.
TRIAL-7  The same, as after an error of the disk, where files may not grow (RLIMIT_FSIZE), no more can be opened (RLIMIT_NOFILE),
         or the disk (a tmpfs) is really full.
TRIAL-8  A clock on the wall that jumps by a day changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.faults import choice, disk, outcome, scenarios, shim
from tests.faults.server import Server, Strike

_BAR = re.compile(r"\d+/[\d?]+ \d+:\d\d:\d\d")  # of progress
_SETTLED_SECONDS = 60
"""At most: the shell that removes a swap folder is a process of its own."""
_OLD_SECONDS = 10
"""Swap folders are not swept before they have this age."""


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A scenario without a fault: what it begins with, does, and leaves."""

    start: Path
    end: Path
    tree: disk.Tree
    events: list[shim.Event]
    outcome: outcome.Outcome
    seconds: float

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(choice.rules(self.events)))

    def power_cuts(self) -> Iterator[tuple[str, disk.Tree]]:
        """Name and what is left."""
        return disk.after_power_cuts(self.tree, self.events)


class NoDisk(RuntimeError):
    """A file system cannot be mounted here."""


class Bench:
    """A folder for everything, and the servers that run commands. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scratch = folder / "watched", folder / "scratch"
        self._data, self._kept = folder / "data", folder / "undisturbed"
        for path in (self.folder, self._data, self._kept):
            shutil.rmtree(path, ignore_errors=True)
        self.scratch.mkdir(parents=True, exist_ok=True)
        scenarios.make_data(self._data)
        self._library = shim.built(self.scratch)
        self._servers: dict[tuple[str, ...], Server] = {}
        self._undisturbed: dict[str, Undisturbed] = {}

    def undisturbed(self, name: str) -> Undisturbed:
        """Runs it, once. RuntimeError where it fails, or the log has missed a byte."""
        if name not in self._undisturbed:
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
            self._undisturbed[name] = Undisturbed(
                start=start, end=end, tree=tree, events=events, outcome=outcome.outcome_of(end), seconds=seconds
            )
        return self._undisturbed[name]

    def fault(self, name: str, rule: str) -> str:
        """What was wrong after this fault; "" if nothing."""
        before = self.undisturbed(name)
        self._begin(before.start)
        code, killed = self._run(name, rule), rule.endswith(":kill")
        if not shim.struck(self.scratch):
            return "the fault has not struck"
        told = self._wrong_end(code, killed) or self._wrong_files(before, finished=code == 0, killed=killed, rule=rule)
        return told or self._wrong_repetition(name, before)

    def _wrong_error(self, name: str, before: Undisturbed, code: int) -> str:
        told = self._wrong_end(code, killed=False) or self._wrong_files(
            before, finished=code == 0, killed=False, rule=""
        )
        return told or self._wrong_repetition(name, before)

    def power_cut(self, name: str, tree: disk.Tree) -> str:
        """The same, after a power cut that left this tree."""
        before = self.undisturbed(name)
        shutil.rmtree(self.folder)
        disk.make(tree, self.folder)
        return self._wrong_repetition(name, before)

    def signalled(self, name: str, number: int, share: float) -> str:
        """The same, after a signal when this share of the undisturbed run's time is over. It may come too late, or at the end."""
        before = self.undisturbed(name)
        self._begin(before.start)
        code = self._run(name, strike=(number, share * before.seconds))
        if code not in (0, -number, *((130,) if number != signal.SIGKILL else ())):
            return f"exit code {code} after signal {number}: {_last_line(self.said)}"
        # A worker process that joblib was just starting may tell of its parent's death; the killed command itself says nothing.
        if number != signal.SIGKILL and "Traceback" in self.said:
            return f"a traceback after signal {number}: {_last_line(self.said)}"
        told = self._wrong_files(before, finished=code == 0, killed=True, rule="")
        return told or self._wrong_repetition(name, before)

    def limited(self, name: str, limits: Mapping[str, int]) -> str:
        """TRIAL-7, with limits of the process."""
        before = self.undisturbed(name)
        self._begin(before.start)
        return self._wrong_error(name, before, self._run(name, limits=limits))

    def on_full_disk(self, name: str, share: float) -> str:
        """TRIAL-7, on a tmpfs with room for this share of what the undisturbed run adds. NoDisk where none is allowed."""
        before = self.undisturbed(name)
        self._begin(before.start)
        there = _bytes_in(before.start)
        room = int(share * (_bytes_in(before.end) - there))
        with self._disk(before.start, there + max(4096, room)):  # no room at all would be no limit
            code = self._run(name)
            _mount("-o", "remount,size=1g", self.folder)
            return self._wrong_error(name, before, code)

    def clock_jumps(self, name: str, share: float, seconds: int) -> str:
        """TRIAL-8."""
        before = self.undisturbed(name)
        self._begin(before.start)
        if code := self._run(name, clock=f"{share * before.seconds}:{seconds}"):
            return f"exit code {code}: {_last_line(self.said)}"
        return self._wrong_files(before, finished=True, killed=False, rule="")

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
        """On stderr, by the last command."""
        return (self.scratch / "out.err").read_text(errors="replace")

    def _begin(self, start: Path) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(start, self.folder)

    def _run(
        self,
        name: str,
        rule: str = "",
        *,
        again: bool = False,
        strike: Strike | None = None,
        limits: Mapping[str, int] | None = None,
        clock: str = "",
    ) -> int:
        scenario = scenarios.SCENARIOS[name]
        if scenario.modules not in self._servers:
            self._servers[scenario.modules] = Server(self._library, *scenario.modules)
        environment = shim.environment(self._library, self.folder, self.scratch, rule, clock)
        environment["LMS3D_CACHE"] = str(self.folder / "cache")
        words = scenario.words(self.folder, self._data, again=again)
        output = self.scratch / "out"
        code = self._servers[scenario.modules].run(scenario.module, words, environment, output, strike, limits)
        self._settle()
        return code

    def _settle(self) -> None:
        """Until who removes the swap folder of a killed process is done; one that nobody removes will be old at the next start."""
        until = time.monotonic() + _SETTLED_SECONDS
        while time.monotonic() < until and _named_by_a_process(self.folder / "swap"):
            time.sleep(0.02)
        for folder in (self.folder / "swap").glob("lms3d-swap-*"):
            os.utime(folder, (time.time() - _OLD_SECONDS,) * 2)

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

    def _wrong_files(self, before: Undisturbed, *, finished: bool, killed: bool, rule: str) -> str:
        """TRIAL-1, -2, and -4."""
        try:
            found = self._now()
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
            told = outcome.differences(self._now(), before.outcome)
        except ValueError as error:
            return f"repeated, {error}"
        return f"repeated, {told}" if told else ""

    def _now(self) -> outcome.Outcome:
        return outcome.outcome_of(self.folder)

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
        for server in self._servers.values():
            server.__exit__()


def _bytes_in(folder: Path) -> int:
    """What it takes of a tmpfs."""
    return sum(-(-path.lstat().st_size // 4096) * 4096 for path in folder.rglob("*"))


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, timeout=30)


def _named_by_a_process(folder: Path) -> bool:
    """Whether a process has a path in `folder` among its arguments."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if f"{folder}/".encode() in (process / "cmdline").read_bytes():
                return True
    return False


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "nothing on stderr"
