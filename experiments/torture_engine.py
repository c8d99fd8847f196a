"""`python -m experiments.torture_engine`: thousands of random steps and functions, planned, rewritten, run and compared.

1. Steps without TensorFlow: simulator and ledger against a second, plain one; every planner; many limits of the same step.
2. TensorFlow functions of all sorts of layers, with state: not a bit may change, sliced in float64 no more than rounding.
3. Each batch runs in a process of its own, the steps in two, under other hash seeds: plans must be equal.

Batches that a folder holds already, and that went well, are not run again: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path

from experiments.fuzzing import batches
from experiments.fuzzing.batches import KINDS, Result
from lms3d import cli, errors

SHARES = {"ledger": 0.2, "simulator": 0.25, "other planners": 0.2, "limits": 0.2, "functions": 0.1, "slabs": 0.05}
"""Of all cases, by kind."""
MOST_SECONDS = 7200.0
_COMPARED = ("other planners", "limits")
_COLUMNS = [f.name for f in fields(Result) if f.name != "failure"]


class Failed(RuntimeError):
    """A case broke a promise."""

    exit_code = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, report. Returns the exit code."""
    return errors.run(lambda: _torture(_parser().parse_args(arguments)))


def _torture(options: argparse.Namespace) -> None:
    folder = Path(options.output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    done = _done(folder / "batches.csv")
    for name, number in _wanted(options.cases, options.seed, options.kind or list(KINDS)):
        if (name, number) not in done or done[name, number].failure:
            done[name, number] = result = _apart(name, number)
            _note(folder, result)
            said = f"FAILED, see {folder / _failure(result)}" if result.failure else "good"
            print(
                f"{name}, seed {number}: {result.cases + result.silent} cases in {result.seconds:.0f} s: {said}",
                flush=True,
            )
    print("\n".join(table(list(done.values()))))
    if bad := [r for r in done.values() if r.failure]:
        raise Failed(f"{len(bad)} of {len(done)} batches failed; their cases are in {folder}")


def _wanted(cases: int, first: int, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(kind, seed) of every batch; the kinds in turn."""
    whole = sum(SHARES[name] for name in kinds)
    counts = {name: -(-int(cases * SHARES[name] / whole) // KINDS[name].size) for name in kinds}
    for turn in range(max(counts.values(), default=0)):
        yield from ((name, first + turn) for name in kinds if turn < counts[name])


def _apart(name: str, number: int) -> Result:
    """A batch in a process of its own, and once more under another hash seed where plans are compared."""
    first = _in_process(name, number, "1")
    if name not in _COMPARED or first.failure:
        return first
    second = _in_process(name, number, "2")
    if second.digest != first.digest:
        return replace(first, failure=second.failure or "another process made other plans")
    return first


def _in_process(name: str, number: int, hash_seed: str) -> Result:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, name, number))
    before = dict(os.environ)
    os.environ |= {"PYTHONHASHSEED": hash_seed, "TF_CPP_MIN_LOG_LEVEL": "3"}  # read when the process starts
    try:
        process.start()
    finally:
        os.environ.clear()
        os.environ |= before
    there.close()
    try:
        if here.poll(MOST_SECONDS):
            found: Result = here.recv()
            return found
        return Result(name, number, 0, 0, MOST_SECONDS, failure=f"no end after {MOST_SECONDS:.0f} s")
    except EOFError:
        process.join()
        return Result(name, number, 0, 0, 0.0, failure=f"the process ended with code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _send(there: Connection, name: str, number: int) -> None:
    there.send(batches.run(name, number))


def _failure(result: Result) -> str:
    return f"failed-{result.kind.replace(' ', '-')}-{result.seed}.txt"


def _done(path: Path) -> dict[tuple[str, int], Result]:
    """What ran before, by kind and seed."""
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    found = [
        Result(r["kind"], int(r["seed"]), int(r["cases"]), int(r["silent"]), float(r["seconds"]), r["digest"])
        for r in rows
    ]
    texts = [path.parent / _failure(result) for result in found]
    whole = [replace(r, failure=t.read_text()) if t.exists() else r for r, t in zip(found, texts, strict=True)]
    return {(r.kind, r.seed): r for r in whole}


def _note(folder: Path, result: Result) -> None:
    """The text of a failure first: a batch that is in the table is complete. Its last row counts."""
    text = folder / _failure(result)
    if result.failure:
        text.write_text(result.failure)
    else:
        text.unlink(missing_ok=True)
    path = folder / "batches.csv"
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, extrasaction="ignore")
        if new:
            writer.writeheader()
        writer.writerow(asdict(result))


def table(results: Sequence[Result]) -> list[str]:
    """Rows of text: per kind the cases that were checked, those that said nothing, and the batches that failed."""
    rows = [("kind", "cases", "of them silent", "failed batches", "seconds")]
    for name, group in itertools.groupby(sorted(results, key=lambda r: r.kind), lambda r: r.kind):
        of = list(group)
        silent = sum(r.silent for r in of)
        cases, failed = sum(r.cases for r in of) + silent, sum(bool(r.failure) for r in of)
        rows.append((name, f"{cases:,}", f"{silent:,}", str(failed), f"{sum(r.seconds for r in of):.0f}"))
    return ["  ".join(f"{cell:>{max(14, len(rows[0][i]))}}" for i, cell in enumerate(row)) for row in rows]


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.torture_engine", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cases", type=cli.whole(1), default=10000, help="cases in all (default: 10000)")
    parser.add_argument(
        "--kind", choices=list(KINDS), action="append", default=[], help="only these; may be given several times"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first batch of each kind (default: 0)")
    parser.add_argument(
        "--output",
        default="runs/torture-engine",
        help="folder of results, new or to go on in (default: runs/torture-engine)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
