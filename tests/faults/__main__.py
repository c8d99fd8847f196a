"""`python -m tests.faults`: every fault at every place, in every command, and every power cut.

Signals at random moments come first, then limits of files, full disks and a clock that jumps. Then each command is killed, or
refused by the disk, at every rename, fsync and unlink, and at the first, a middle and the last write of each file: what must hold
then is in trial.py. Results are added to OUTPUT/results.jsonl; what went well there is not tried again.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import product
from pathlib import Path

from tests.faults.scenarios import SCENARIOS
from tests.faults.trial import Bench, NoDisk

Trial = tuple[str, str, Callable[[], str]]
"""Scenario, what befalls it, and what tries that."""

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LIMITS = {
    "RLIMIT_FSIZE": (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20),  # less has no room for what is said on stderr
    "RLIMIT_NOFILE": (*range(8, 40, 4), 48, 64, 96),
}
FULL = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
DAY = 86_400


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries, then prints a table. Returns 1 if something is wrong."""
    options = _parser().parse_args(arguments)
    folder = Path(options.output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.jsonl"
    done = {(one["scenario"], one["fault"]) for one in _read(results) if not one["wrong"]}
    with Bench(folder) as bench, results.open("a") as stream:
        for scenario, fault, attempt in _trials(bench, options):
            if (scenario, fault) in done:
                continue
            try:
                wrong = attempt()
            except NoDisk as error:
                print(f"{scenario}, {fault}: left out: {error}", flush=True)
                continue
            print(json.dumps({"scenario": scenario, "fault": fault, "wrong": wrong}), file=stream, flush=True)
            if wrong:
                print(f"{scenario}, {fault}: {wrong}", flush=True)
    found = list(_read(results))
    print(table(found))
    return int(any(one["wrong"] for one in found))


def table(results: Sequence[dict[str, str]]) -> str:
    """Markdown: what was tried and what went wrong, by command and fault."""
    tried, wrong = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in results:
        fault = one["fault"]
        action = next((kind for kind in ("power cut", "full disk") if fault.startswith(kind)), "")
        action = action or (fault.split() if " " in fault else fault.rsplit(":", 1)[::-1])[0]
        tried[one["scenario"], action] += 1
        wrong[one["scenario"], action] += bool(one["wrong"])
    rows = [
        f"| {name} | {action} | {count} | {wrong[name, action]} |" for (name, action), count in sorted(tried.items())
    ]
    return "\n".join(["| command | fault | tried | wrong |", "| --- | --- | ---: | ---: |", *rows])


def _trials(bench: Bench, options: argparse.Namespace) -> Iterator[Trial]:
    for name in options.only or [name for name, scenario in SCENARIOS.items() if scenario.tried]:
        faults = [*_signals(bench, name, options), *_resources(bench, name), *_files(bench, name)]
        faults = [one for one in faults if fnmatch(one[1], options.match)]
        chance = random.Random(options.seed)
        yield from faults if options.most is None else chance.sample(faults, min(options.most, len(faults)))


def _files(bench: Bench, name: str) -> Iterator[Trial]:
    """Faults of one file, and power cuts; but for those that stand in the way of a scenario beside this one, too."""
    undisturbed = bench.undisturbed(name)
    others = [bench.undisturbed(other) for other in SCENARIOS[name].beside]
    rules = {rule for other in others for rule in other.rules}
    yield from ((name, rule, partial(bench.fault, name, rule)) for rule in undisturbed.rules if rule not in rules)
    cuts = {_moment(at) for other in others for at, _ in other.power_cuts()}
    for at, tree in undisturbed.power_cuts():
        if _moment(at) not in cuts:
            yield name, f"power cut {at}", partial(bench.power_cut, name, tree)


def _moment(power_cut: str) -> str:
    """After what it comes, without its number."""
    return power_cut.partition(", ")[2]


def _signals(bench: Bench, name: str, options: argparse.Namespace) -> Iterator[Trial]:
    moments = random.Random(options.seed)
    for number in range(options.signals):
        kind, share = SIGNALS[number % len(SIGNALS)], moments.uniform(0, 1)
        yield name, f"{kind.name} at {share:.3f}", partial(bench.signalled, name, kind, share)


def _resources(bench: Bench, name: str) -> Iterator[Trial]:
    for limit, values in LIMITS.items():
        for most in values:
            yield name, f"{limit} {most}", partial(bench.limited, name, {limit: most})
    for share in FULL:
        yield name, f"full disk at {share}", partial(bench.on_full_disk, name, share)
    for share, seconds in product(FULL, (-DAY, DAY)):
        yield name, f"clock {seconds:+} s at {share}", partial(bench.clock_jumps, name, share, seconds)


def _read(results: Path) -> Iterable[dict[str, str]]:
    """Of each fault the last result."""
    lines = map(json.loads, results.read_text().splitlines() if results.exists() else ())
    return {(one["scenario"], one["fault"]): one for one in lines}.values()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--only", action="append", choices=SCENARIOS, help="this command (again for others; default: all)"
    )
    parser.add_argument(
        "--most", type=int, metavar="N", help="N faults of each command, drawn at random (default: all)"
    )
    parser.add_argument("--match", metavar="PATTERN", default="*", help="faults such as 'rename:*:kill' alone")
    parser.add_argument(
        "--signals", type=int, metavar="N", default=30, help="signals at random moments of each command (default: 30)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw and the moments")
    parser.add_argument("--output", default="runs/faults", help="folder for results and work (default: runs/faults)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
