"""How a case of stress is run, stored and reported: a child process with a deadline, one store of results, one table.

A part, such as the ranks or the damaged inputs, names its groups and the cases of each, and tries a case. All of that happens in a
child process. A child that dies or hangs is a case that went wrong, and the next case gets a new child.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import psutil

from lms3d.errors import InputError

Options = argparse.Namespace
LEFT_OUT = "left out"
"""The count of a case that cannot be tried on this machine; a later call asks again."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a case."""

    wrong: str = ""
    """The fault; "" if there is none."""
    note: str = ""
    """Printed if there is no fault."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the table adds up over a group, such as {"refused": 1}."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What the results keep of a case, such as its peaks in bytes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of stress. A child calls its functions, with the options of the command."""

    groups: Sequence[str]
    cases: Callable[[Options, str], Sequence[str]]
    """The names of a group's cases. The same name means the same case in every run."""
    run: Callable[[Options, str, str], Result]
    """Tries the case of this group and name."""
    fresh: bool = False
    """Whether each case gets a new child."""
    fresh_groups: bool = False
    """Whether the first case of each group gets a new child."""
    once: bool = False
    """Whether a case that went wrong is left alone, too: a rare failure that is tried again is gone."""
    seconds: float = 7200.0
    """The deadline of a case."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the child."""


class WentWrong(RuntimeError):
    """A case broke a promise."""

    exit_code = 1


class Died(RuntimeError):
    """A child ended, hung, or met an error that nobody had expected."""


class Child:
    """A process that calls functions, one after another; it begins with the first. A context manager.

    environment: variables for it, added to this process's.
    """

    def __init__(self, **environment: str) -> None:
        self._environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment
        self._process: Any = None
        self._pipe: Any = None

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float = 7200.0) -> Any:
        """Returns what the function returns. Died if it takes longer, ends the process or raises; an InputError stays one."""
        if self._process is None:
            self._begin()
        answered = False
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(seconds):
                raise Died(f"no end after {seconds:.0f} s")
            good, answer = self._pipe.recv()
            answered = True
        except (EOFError, ConnectionError):
            self._process.join()
            raise Died(f"the process ended with code {self._process.exitcode}") from None
        finally:
            if not answered:
                self.end()
        if not good:
            raise answer
        return answer

    def _begin(self) -> None:
        context, before = multiprocessing.get_context("spawn"), dict(os.environ)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        os.environ.update(self._environment)  # the variables are read when the process starts
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def end(self) -> None:
        """Ends the process and all that it has started."""
        if self._process is not None:
            self._pipe.close()
            end_family(self._process.pid)
            self._process.join()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def family(pid: int) -> list[psutil.Process]:
    """The processes that a process has started, and their own."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def alive(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie, which has ended and not been waited for, does not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end_family(pid: int) -> None:
    """Kills a process and its family, and waits a moment for the family to be gone."""
    with suppress(psutil.NoSuchProcess):
        others = family(pid)
        for process in [*others, psutil.Process(pid)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs([process for process in others if alive(process)], timeout=10)


def _serve(pipe: Connection) -> None:
    """The child: obeys calls until the other end is closed."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # the parent reports a Ctrl-C
    with suppress(EOFError, ConnectionError):
        while True:
            function, arguments = pipe.recv()
            pipe.send(_answer(function, arguments))
    os._exit(0)  # without a wait for children of its own, which end as it does


def _answer(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except InputError as error:
        return False, error
    except Exception:
        return False, Died(traceback.format_exc(limit=-6))


class Store:
    """The results of all cases as lines of JSON. The last line of a case counts."""

    def __init__(self, path: Path) -> None:
        self.path, self._found = path, dict[tuple[str, str, str], dict[str, Any]]()
        for line in path.read_text().splitlines() if path.exists() else ():
            self._put(json.loads(line))

    def add(self, part: str, group: str, case: str, result: Result, seconds: float) -> None:
        """Writes a result down."""
        one = {"part": part, "group": group, "case": case, **asdict(result), "seconds": round(seconds, 1)}
        with self.path.open("a") as stream:
            print(json.dumps(one), file=stream, flush=True)
        self._put(one)

    def done(self, part: str, group: str, case: str, *, once: bool = False) -> bool:
        """Whether a case need not be tried: it went well, or, if it is tried only once, it was tried."""
        known = self._found.get((part, group, case))
        return known is not None and (once or not (known["wrong"] or LEFT_OUT in known["counts"]))

    def wrong(self, parts: Sequence[str]) -> list[str]:
        """A line for each case of these parts that went wrong."""
        return [line_of(*key, one["wrong"]) for key, one in self._found.items() if key[0] in parts and one["wrong"]]

    def table(self, parts: Sequence[str]) -> str:
        """A table in Markdown, with a row for each group of these parts."""
        rows = ["| part | group | tried | wrong | seconds | |", "| --- | --- | ---: | ---: | ---: | --- |"]
        groups = dict.fromkeys((part, group) for part, group, _ in self._found if part in parts)
        for part, group in sorted(groups, key=lambda key: parts.index(key[0])):
            ones = [one for key, one in self._found.items() if key[:2] == (part, group)]
            counts = sum((Counter(one["counts"]) for one in ones), Counter())
            told = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
            wrong, seconds = sum(bool(one["wrong"]) for one in ones), sum(one["seconds"] for one in ones)
            rows.append(f"| {part} | {group} | {len(ones):,} | {wrong} | {seconds:.0f} | {told} |")
        return "\n".join(rows)

    def _put(self, one: dict[str, Any]) -> None:
        self._found[one["part"], one["group"], one["case"]] = one


def line_of(part: str, group: str, case: str, told: str) -> str:
    """A line about a case."""
    return f"{part}, {group}, {case}: {told}"


def try_part(name: str, part: Part, options: Options, store: Store) -> int:
    """Tries the cases of a part that the options ask for and that the store does not hold. Returns the number asked for.

    Died if the part cannot name its cases.
    """
    asked = 0
    with Child(**part.environment) as child:
        for group in part.groups:
            if options.only and not any(fnmatch(group, pattern) for pattern in options.only):
                continue
            if part.fresh_groups:
                child.end()
            cases = _chosen(child.call(part.cases, options, group), options)
            asked += len(cases)
            left = [case for case in cases if not store.done(name, group, case, once=part.once)]
            for case in left:
                _try_case(child, name, part, options, group, case, store)
            if left:
                print(f"{name}, {group}: {len(left):,} of {len(cases):,} cases tried now", flush=True)
    return asked


def _chosen(cases: Sequence[str], options: Options) -> list[str]:
    matching = [case for case in cases if fnmatch(case, options.match)]
    if options.most is None or options.most >= len(matching):
        return matching
    return random.Random(options.seed).sample(matching, options.most)


def _try_case(child: Child, name: str, part: Part, options: Options, group: str, case: str, store: Store) -> None:
    if part.fresh:
        child.end()
    started = time.monotonic()
    try:
        result = child.call(part.run, options, group, case, seconds=part.seconds)
    except Died as error:
        result = Result(wrong=str(error))
    store.add(name, group, case, result, time.monotonic() - started)
    if told := result.wrong or result.note:
        print(line_of(name, group, case, told), flush=True)
