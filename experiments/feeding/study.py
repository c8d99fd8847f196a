"""What the two studies of the input share: options, ranks on cores, parts that are measured once, a report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.feeding.parts import Part, Parts, SomeFailed, remember
from experiments.scalability import launch
from lms3d import cli, errors
from lms3d.files import writable_folder, write_text

BUSY = 0.15
"""Above this the report says that a measurement was disturbed."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One call: where its parts go and who measures them."""

    output: Path
    ranks: tuple[int, ...]
    cores_per_rank: int | None
    launcher: launch.Launcher
    parts: Parts

    @classmethod
    def begin(cls, options: argparse.Namespace, settings: Mapping[str, Any]) -> Study:
        """settings: what measurements of one --output share, beside the cores. InputError where they are other ones."""
        output = writable_folder(Path(options.output).expanduser().resolve(), "--output")
        ranks = tuple(sorted(set(options.ranks)))
        cores = options.cores_per_rank or launch.default_cores_per_rank(max(ranks))
        remember({**settings, "cores_per_rank": cores}, output)
        return cls(
            output=output, ranks=ranks, cores_per_rank=cores, parts=Parts(output, minutes=options.minutes, again=options.again),
            launcher=launch.Launcher(template=options.launcher, cores_per_rank=cores),
        )  # fmt: skip

    def measure(
        self, kinds: Sequence[str], maker: Callable[[str], Callable[..., Part]], report: Callable[[], str]
    ) -> None:
        """Every kind on every number of ranks, then the report, also of a study that is interrupted.

        maker: kind -> a function of (ranks, seconds left) that measures a part. Raises SomeFailed.
        """
        try:
            for kind in kinds:
                make = maker(kind)
                for n in self.ranks:
                    self.parts.measure(f"{kind}-{n}", lambda left, make=make, n=n: make(n, left))  # type: ignore[misc]
        except KeyboardInterrupt:
            raise errors.Interrupted("interrupted; run the same command again to go on") from None
        finally:
            text = report()
            write_text(self.output / "report.md", text)
            print(text)
            print(f"written: {self.output}")
        if self.parts.failed:
            raise SomeFailed(f"{len(self.parts.failed)} of the measurements failed: {self.parts.failed[0]}")

    def launch(self, program: str, kind: str, asked: Mapping[str, Any], ranks: int, left: float | None) -> Part:
        """A part that real ranks of `experiments.feeding.<program>` measure; they write it to asked["output"]."""
        found = self.output / "parts" / f".{kind}-{ranks}.found.json"
        found.parent.mkdir(exist_ok=True)
        found.unlink(missing_ok=True)
        command = [sys.executable, "-m", f"experiments.feeding.{program}", json.dumps({**asked, "output": str(found)})]
        self.launcher.run(ranks, command, self.output / "logs" / f"{kind}-{ranks}.txt", patience_seconds=left)
        part: Part = json.loads(found.read_text())
        found.unlink()
        return part

    def notes(self, found: Sequence[Part], busy: str) -> list[str]:
        """What was disturbed (under the title `busy`), skipped, or failed: a list for each that is not empty."""
        disturbed = [f"{p['name']}: {p['busy']:.0%} of the cores in use by others" for p in found if p["busy"] > BUSY]
        lists = {busy: disturbed, "Skipped": self.parts.skipped, "Failed": self.parts.failed}
        return ["\n".join([f"{title}:", *(f"- {line}" for line in lines)]) for title, lines in lists.items() if lines]


def add_options(parser: cli.Parser, output: str) -> None:
    """--ranks, --data, --launcher, --cores-per-rank, --minutes, --again, --output."""
    add, count = parser.add_argument, cli.whole(1)
    add("--ranks", type=count, nargs="+", metavar="N", default=[1, 2], help="numbers of ranks (default: 1 2)")
    add("--data", type=cli.path, metavar="DIR", default=None, help="ChestX-ray14 folder (default: the embedded data)")
    ranks = "starts the ranks that train, {ranks} stands for their number (default: %(default)r)"
    add("--launcher", metavar="COMMAND", default=launch.HORVODRUN, help=ranks)
    cores = "cores of each rank, for any number of ranks (default: all shared by the most ranks; with a GPU unbound)"
    add("--cores-per-rank", type=count, metavar="N", default=None, help=cores)
    minutes = "time limit: measurements that do not fit into what is left of it are skipped or ended (default: none)"
    add("--minutes", type=cli.number(0), metavar="X", default=None, help=minutes)
    add("--again", action="store_true", default=False, help="measure again what is there (default: off)")
    add("--output", metavar="DIR", default=output, help="where everything goes (default: %(default)s)")
