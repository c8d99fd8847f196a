"""Measurements on 1, 2, .. N ranks: options, ranks on cores, records that are kept, a report."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lms3d import cli
from lms3d.experiments.harness import command, page, store
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.command import SomeFailed
from lms3d.experiments.harness.ranks import Launcher, default_cores_per_rank
from lms3d.experiments.harness.store import Record, Records


@dataclass(frozen=True, kw_only=True)
class RankStudy:
    """One call: where its measurements go, and what starts the ranks."""

    output: Path
    ranks: tuple[int, ...]
    records: Records
    cores_per_rank: int | None = None
    launcher: Launcher = field(default_factory=Launcher)

    @classmethod
    def begin(cls, options: argparse.Namespace, settings: Mapping[str, Any]) -> RankStudy:
        """settings: what all measurements in one --output share, beside the cores. InputError if they differ from before."""
        output = command.folder(options).resolve()
        numbers = tuple(sorted(set(options.ranks)))
        cores = options.cores_per_rank or default_cores_per_rank(max(numbers))
        store.remember({**settings, "cores_per_rank": cores}, output)
        return cls(
            output=output,
            ranks=numbers,
            cores_per_rank=cores,
            records=Records(output, minutes=options.minutes, again=options.again),
            launcher=Launcher(template=options.launcher, cores_per_rank=cores),
        )

    def measure(
        self,
        kinds: Iterable[str],
        maker: Callable[[str], Callable[..., Record]],
        report: Callable[[], Sequence[str]],
        *,
        by_number: bool = False,
    ) -> None:
        """Measures every kind on every number of ranks, then writes the report, also of a study that is interrupted.

        maker: kind -> a function of (ranks, seconds left) that measures a part. report: its sections. by_number: all kinds on one
        number of ranks before the next. Raises SomeFailed.
        """
        pairs = [(kind, n) for kind in kinds for n in self.ranks]
        of_kind = functools.cache(maker)
        try:
            with command.stoppable():
                for kind, n in sorted(pairs, key=lambda pair: pair[1]) if by_number else pairs:
                    self.records.measure(f"{kind}-{n}", functools.partial(of_kind(kind), n))
        finally:
            page.publish(self.output / "report.md", report())
        if failed := self.records.failed:
            raise SomeFailed(f"{len(failed)} of the measurements failed: {failed[0]}")

    def found(self, kinds: Iterable[str]) -> list[Record]:
        """All that has been measured, by kind and number of ranks."""
        return [record for kind in kinds for record in self.records.found(kind)]

    def launch(self, module: str, kind: str, asked: Mapping[str, Any], number: int, left: float | None) -> Record:
        """A part that real ranks of a module measure; they write it to asked["output"]."""
        found = self.output / "parts" / f".{kind}-{number}.found.json"
        found.parent.mkdir(exist_ok=True)
        found.unlink(missing_ok=True)
        words = [*of_module(module), json.dumps({**asked, "output": str(found)})]
        self.launcher.run(number, words, self.output / "logs" / f"{kind}-{number}.txt", patience_seconds=left)
        part: Record = json.loads(found.read_text())
        found.unlink()
        return part


def add_options(parser: cli.Parser, output: str) -> None:
    """--ranks, --launcher, --cores-per-rank, --minutes, --again, --output. output: the default folder."""
    ranks = "numbers of ranks (default: 1 2)"
    parser.add_argument("--ranks", type=cli.whole(1), nargs="+", metavar="N", default=[1, 2], help=ranks)
    command.add_launcher(parser)
    command.add_resumable(parser, output)
