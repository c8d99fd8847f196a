"""`python -m experiments.resnet50_benchmark`: is this machine or cluster as fast as it should be? The HPC article's check.

1. ResNet-50 (14 outputs, Adam) trains on synthetic images, which lie on the device: what the devices and the links between them
   can do.
2. It trains on real ones, from shards, by lms3d's own pipeline: what the rest of the machine takes away from that.
3. Each with 1, 2, ... N ranks: images/s and scaling efficiency, by laps of some steps after a warm-up, and their spread.
4. result.json has the measurements, the machine and the versions; with `--expect` the answer is yes, or exit code 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from lms3d import cli
from lms3d.atomic_files import write_json
from lms3d.device import machine
from lms3d.experiments.feeding import accepted
from lms3d.experiments.feeding.accepted import RankSpeed
from lms3d.experiments.feeding.training_rank import REAL, SYNTHETIC
from lms3d.experiments.harness import command, page, rank_study
from lms3d.experiments.harness.rank_study import RankStudy
from lms3d.experiments.harness.store import Record
from lms3d.experiments.harness.table import Shown, of_records

KINDS = SYNTHETIC, REAL

_EPILOG = """\
examples:
  python -m experiments.resnet50_benchmark
  python -m experiments.resnet50_benchmark --ranks 1 2 4 8 --batch-size 64 --label "bare metal" --expect 2500
  python -m experiments.resnet50_benchmark --ranks 1 2 4 8 --launcher "srun -n {ranks}" --data ~/ChestX-ray14
  python -m experiments.resnet50_benchmark --ranks 1 2 --resolution 64 --kinds synthetic

writes into --output: result.json (for experiments.cluster_comparison), report.md; logs/, parts/"""

_NOTES = """\
Images/s: of all ranks together, mean over laps; a lap is as long as its slowest rank. Std: of a lap. Interval: 95 %, of the
mean, by Student's t. Efficiency: images/s per rank, against the fewest ranks. Waits: share of time in next(iterator)."""


SHOWN: Shown = {
    "data": ("data", str), "ranks": ("ranks", str), "mean": ("images/s", ".4g"), "std": ("std", ".2g"),
    "interval": ("95 % interval", str), "efficiency": ("efficiency", ".1%"), "waiting": ("waits", ".2%"),
    "cores": ("cores in use", ".2f"),
}  # fmt: skip


class TooSlow(RuntimeError):
    """--expect was not reached."""

    exit_code = 2


def _benchmark(options: argparse.Namespace, typed: str) -> None:
    names = ("resolution", "batch_size", "precision", "warmup", "laps", "steps", "launcher")
    data = "embedded radiographs" if options.data is None else options.data.name
    settings = {"model": "resnet50", **{name: getattr(options, name) for name in names}, "images": data}
    study = RankStudy.begin(options, settings)
    study.launcher.command(1, [])  # it is there
    settings["cores_per_rank"] = study.cores_per_rank
    kinds = [kind for kind in KINDS if kind in options.kinds]
    study.measure(kinds, partial(_maker, study, options), lambda: _report(study, options, settings, typed))
    if options.expect is not None:
        most = max(study.ranks)
        wanted = [p for p in accepted.points(study.found(KINDS)) if p.ranks == most and p.data in options.kinds]
        print(judge(wanted, options.kinds, options.expect, most))


def judge(found: Sequence[RankSpeed], kinds: Sequence[str], expected: float, ranks: int) -> str:
    """A sentence if the slowest kind of data reaches `expected` images/s; TooSlow if it does not, or if a kind is missing."""
    missing = sorted(set(kinds) - {point.data for point in found})
    if missing:
        what = " and ".join(missing)
        raise TooSlow(f"--expect {expected:g}: {what} data was not measured with {ranks} ranks; give more --minutes")
    slowest = min(found, key=lambda point: point.speed.mean)
    where = f"{slowest.speed.mean:.4g} images/s with {ranks} rank{'s' if ranks > 1 else ''} on {slowest.data} data"
    if slowest.speed.mean >= expected:
        return f"Accepted: {where}; expected at least {expected:g}"
    hint = (
        f"the device waits {slowest.waiting:.0%} of the time: look at the disk and experiments.input_pipeline"
        if slowest.waiting is not None and slowest.waiting > 0.02
        else "the device does not wait for data: look at its clocks, the links (experiments.scaling --probe) and lms3d.doctor"
    )
    interval = f" (95 % interval {slowest.speed.interval})" if slowest.speed.interval else ""
    raise TooSlow(f"--expect {expected:g}: found {where}{interval}; {hint}")


def _maker(study: RankStudy, options: argparse.Namespace, kind: str) -> Callable[..., Record]:
    """(ranks, seconds left) -> a part of this kind of data."""
    from lms3d.experiments.feeding.images import shards_of

    shards = str(shards_of(options.data, options.resolution, max(study.ranks)).directory) if kind == REAL else None
    asked = {
        "model": "resnet50", "data": kind, "shards": shards, "resolution": options.resolution, "batch_size": options.batch_size,
        "precision": options.precision, "warmup": options.warmup, "laps": options.laps, "steps": options.steps,
    }  # fmt: skip
    return lambda ranks, left: {
        **study.launch("lms3d.experiments.feeding.training_rank", kind, asked, ranks, left),
        "data": kind,
    }


def _report(study: RankStudy, options: argparse.Namespace, settings: dict[str, Any], typed: str) -> list[str]:
    """Writes result.json of what there is, and returns the sections of report.md."""
    found = study.found(KINDS)
    content = accepted.content(found, options.label, settings, typed)
    write_json(study.output / "result.json", content)
    points = accepted.points(found)
    sections = [f"# ResNet-50: {options.label}", table(points) if points else "Nothing was measured.", _NOTES]
    return [*sections, *page.gaps(study.records, found), _conditions(content)]


def table(points: Sequence[RankSpeed]) -> str:
    """A table in the article's form: data, ranks, images/s."""
    return of_records(({**asdict(one), **asdict(one.speed), "interval": one.speed.interval} for one in points), SHOWN)


def _conditions(content: dict[str, Any]) -> str:
    settings, machines = content["settings"], accepted.machines_in_words(content["machines"])
    return (
        f"{settings['resolution']}^2 images, batches of {settings['batch_size']} a rank, {settings['precision']}; "
        f"{settings['warmup']} steps of warm-up, {settings['laps']} laps of {settings['steps']} steps; cores of a rank: "
        f"{settings['cores_per_rank'] or 'not bound'}. Real: {settings['images']}. Machine: {machines}. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}. Made by `{content['command']}`."
    )


def _options(parser: cli.Parser) -> None:
    gpu = machine.has_nvidia_driver()
    rank_study.add_options(parser, "resnet50-benchmark")
    add, count = parser.add_argument, cli.whole(1)
    add("--data", type=cli.path, metavar="DIR", default=None, help="ChestX-ray14 folder (default: the embedded data)")
    add("--kinds", choices=KINDS, nargs="+", default=list(KINDS), help="of data (default: both)")
    images = "images a step and rank (default: 64; without a GPU 32)"
    add("--batch-size", type=count, metavar="N", default=64 if gpu else 32, help=images)
    side = "side of the images (default: 224; without a GPU 64)"
    add("--resolution", type=count, metavar="N", default=224 if gpu else 64, help=side)
    formats = "number format of the activations (default: float32)"
    add("--precision", choices=cli.PRECISIONS, default="float32", help=formats)
    first = "first steps (default: 10; without a GPU 3)"
    add("--warmup", type=count, metavar="N", default=10 if gpu else 3, help=first)
    add("--laps", type=count, metavar="N", default=10 if gpu else 6, help="to measure (default: 10; without a GPU 6)")
    add("--steps", type=count, metavar="N", default=20 if gpu else 3, help="of a lap (default: 20; without a GPU 3)")
    expected = (
        "exit code 2 when the most ranks, on the slower kind of data, train fewer images/s (default: no judgement)"
    )
    add("--expect", type=cli.number(0), metavar="IMAGES_PER_SECOND", default=None, help=expected)
    add("--label", metavar="TEXT", default="this machine", help="name of the cluster (default: this machine)")


main, _parser = command.of(
    "resnet50_benchmark", _benchmark, _options, __doc__, _EPILOG, resumed=True,
    exits={1: "a measurement failed", 2: "wrong option, or slower than --expect"},
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
