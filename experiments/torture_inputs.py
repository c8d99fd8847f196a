"""`python -m experiments.torture_inputs`: damaged and hostile files for every reader; does each end well?

Every reader of files gets its sound files many times, each time with other damage: flipped bits, halves, foreign text, other
values, pickles, claims of terabytes. What was read must be what was written, what the file now says, or made again; or one line
tells what is wrong. It is a fault where anything else is raised, more than 300 MiB is taken, or code of a file runs.

A trial follows from the reader's name and its number: `--first N --count 1 --readers NAME` repeats one. What is done stays in
--output: started again, it goes on, and tries the faults again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from experiments.hostile import trial
from experiments.hostile.readers import READERS, Reader
from experiments.hostile.trial import Bench, Trial
from lms3d import cli, errors
from lms3d.files import writable_folder, write_text

_ROOM_BYTES = 4 << 30


class Failed(RuntimeError):
    """A damaged input was not told in one line."""

    exit_code = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Damage, read, judge, tabulate. Returns the exit code: 1 where there was a fault."""
    return errors.run(lambda: _torture(_parser().parse_args(arguments)))


def _torture(options: argparse.Namespace) -> None:
    readers = _chosen(options)
    output = writable_folder(Path(options.output).absolute(), "--output") if options.output else None
    _limit_memory()
    found: dict[str, list[Trial]] = {}
    with tempfile.TemporaryDirectory(prefix="lms3d-hostile-") as place:
        os.chdir(place)
        for name, reader in readers.items():
            found[name] = _trials(name, reader, options, Path(place) / "bench", output)
    faults = [one for trials in found.values() for one in trials if one.outcome == "fault"]
    told = trial.table(found)
    print(told)
    for one in faults:
        print(f"{one.reader}, number {one.seed}, {one.damage}: {one.told}")
    if output:
        write_text(output / "table.md", told + "\n")
    if faults:
        raise Failed(f"{len(faults)} of {sum(map(len, found.values()))} damaged inputs did not end well")


def _trials(name: str, reader: Reader, options: argparse.Namespace, folder: Path, output: Path | None) -> list[Trial]:
    """Those that an earlier call made are taken from `output`."""
    path = output / f"{name.replace(' ', '-')}.jsonl" if output else None
    done = {}
    if path and path.is_file():
        done = {one.seed: one for one in (Trial(**json.loads(line)) for line in path.read_text().splitlines())}
    bench = Bench(name, reader, folder)
    for seed in range(options.first, options.first + options.count):
        if seed not in done or done[seed].outcome == "fault":
            done[seed] = bench.run(seed)
            if path:
                with path.open("a") as stream:
                    stream.write(json.dumps(asdict(done[seed])) + "\n")
    return [done[seed] for seed in range(options.first, options.first + options.count)]


def _limit_memory() -> None:
    """A reader that believes a claim of gigabytes gets a MemoryError, and the machine stays usable."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _chosen(options: argparse.Namespace) -> Mapping[str, Reader]:
    readers = READERS
    if options.networks:
        from experiments.hostile.networks import NETWORKS

        readers = NETWORKS
    if unknown := [name for name in options.readers if name not in readers]:
        raise errors.InputError(f"--readers: found {unknown[0]!r}; expected some of {', '.join(readers)}")
    return {name: reader for name, reader in readers.items() if not options.readers or name in options.readers}


def _parser() -> cli.Parser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = cli.Parser(prog="python -m experiments.torture_inputs", description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--count", type=cli.whole(1), metavar="N", default=300, help="damaged inputs for each reader (default: 300)")
    add("--first", type=cli.whole(0), metavar="N", default=0, help="number of the first (default: 0)")
    add("--readers", nargs="+", metavar="NAME", default=[], help="only these (default: all)")
    networks = "the readers that need TensorFlow: .keras files, measured speeds (default: all others)"
    add("--networks", action="store_true", default=False, help=networks)
    add(
        "--output", metavar="DIR", default=None, help="keep every outcome here, and go on from there (default: nowhere)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
