"""`python -m experiments.resnet50_benchmark`: is this environment as fast as it should be? The HPC article's check.

1. ResNet-50 trains on synthetic images, which lie on the device: what the devices and the links between them can do.
2. It trains on real ones, from shards, by lms3d's own pipeline: what the rest of the machine takes away from that.
3. Each with 1, 2, ... N ranks; laps of some steps after a warm-up, and their spread.
4. result.json tells what was measured, where and with what; `--expect` makes it an answer: yes, or exit code 2.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.feeding import accepted
from experiments.feeding.accepted import Point
from experiments.feeding.parts import Part, Parts, SomeFailed, remember
from experiments.scalability import launch
from experiments.scalability.tables import markdown
from lms3d import cli, errors
from lms3d.device import machine

SYNTHETIC, REAL = "synthetic", "real"
BUSY = 0.15
"""Above this the report says that a measurement was disturbed."""

_DESCRIPTION = """\
Check a new machine or cluster: images/s of ResNet-50 (training, 14 outputs, Adam) on synthetic and on real images, for
1..N ranks, mean and spread after a warm-up, and scaling efficiency.

Each measurement is saved as it finishes; started again with the same --output only what is missing is measured."""

_EPILOG = """\
examples:
  python -m experiments.resnet50_benchmark
  python -m experiments.resnet50_benchmark --ranks 1 2 4 8 --batch-size 64 --label "bare metal" --expect 2500
  python -m experiments.resnet50_benchmark --ranks 1 2 4 8 --launcher "srun -n {ranks}" --data ~/ChestX-ray14
  python -m experiments.resnet50_benchmark --ranks 1 2 --resolution 64 --kinds synthetic

writes into --output: result.json (for experiments.cluster_comparison), report.md; logs/, parts/
exit codes: 0 done, 1 a measurement failed, 2 wrong option, or slower than --expect, 130 interrupted (run again to go on)"""

_NOTES = """\
Images/s: of all ranks together, mean over laps; a lap is as long as its slowest rank. Std: of a lap. Interval: 95 %, of the
mean, by Student's t. Efficiency: images/s per rank, against the fewest ranks. Waits: share of time in next(iterator)."""


class TooSlow(RuntimeError):
    """--expect was not reached."""

    exit_code = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, report, judge. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["python", "-m", "experiments.resnet50_benchmark", *words])
    return errors.run(lambda: _benchmark(_parser().parse_args(words), command))


def _benchmark(options: argparse.Namespace, command: str) -> None:
    from lms3d.files import writable_folder

    output = writable_folder(Path(options.output).expanduser().resolve(), "--output")
    ranks = sorted(set(options.ranks))
    cores = options.cores_per_rank or launch.default_cores_per_rank(max(ranks))
    launcher = launch.Launcher(template=options.launcher, cores_per_rank=cores)
    launcher.command(1, [])  # it is there
    settings = _settings(options, cores)
    remember(settings, output)
    parts = Parts(output, minutes=options.minutes, again=options.again)
    try:
        for kind in [kind for kind in (SYNTHETIC, REAL) if kind in options.kinds]:
            shards = _shards(options, max(ranks)) if kind == REAL else None
            for n in ranks:
                parts.measure(f"{kind}-{n}", partial(_measure, kind, shards, options, launcher, n, output))
    except KeyboardInterrupt:
        raise errors.Interrupted("interrupted; run the same command again to go on") from None
    finally:
        print(_write(output, parts, options, settings, command))
        print(f"written: {output}")
    if parts.failed:
        raise SomeFailed(f"{len(parts.failed)} of the measurements failed: {parts.failed[0]}")
    if options.expect is not None:
        wanted = [p for p in accepted.points(_found(parts)) if p.ranks == max(ranks) and p.data in options.kinds]
        print(judge(wanted, options.kinds, options.expect, max(ranks)))


def judge(found: Sequence[Point], kinds: Sequence[str], expected: float, ranks: int) -> str:
    """A sentence when the slowest kind of data reaches `expected` images/s; else, or where one is missing, TooSlow."""
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
        if slowest.waiting > 0.02
        else "the device does not wait for data: look at its clocks, the links (experiments.scaling --probe) and lms3d.doctor"
    )
    raise TooSlow(f"--expect {expected:g}: found {where}{_interval(slowest)}; {hint}")


def _interval(point: Point) -> str:
    low, high = point.speed.low, point.speed.high
    return "" if low is None or high is None else f" (95 % interval {low:.4g} to {high:.4g})"


def _measure(
    kind: str, shards: Path | None, options: argparse.Namespace, launcher: launch.Launcher, ranks: int, output: Path,
    left: float | None,
) -> Part:  # fmt: skip
    found = output / "parts" / f".{kind}-{ranks}.found.json"
    found.parent.mkdir(exist_ok=True)
    found.unlink(missing_ok=True)
    asked = {
        "output": str(found), "data": kind, "shards": shards and str(shards), "resolution": options.resolution,
        "batch_size": options.batch_size, "precision": options.precision, "warmup": options.warmup,
        "laps": options.laps, "steps": options.steps,
    }  # fmt: skip
    program = [sys.executable, "-m", "experiments.feeding.benchmark_rank", json.dumps(asked)]
    launcher.run(ranks, program, output / "logs" / f"{kind}-{ranks}.txt", patience_seconds=left)
    part: Part = json.loads(found.read_text())
    found.unlink()
    return {**part, "data": kind}


def _shards(options: argparse.Namespace, most_ranks: int) -> Path:
    from experiments.feeding.images import shards_of

    return shards_of(options.data, options.resolution, most_ranks).directory


def _settings(options: argparse.Namespace, cores: int | None) -> dict[str, object]:
    """What measurements of one --output share."""
    names = ("resolution", "batch_size", "precision", "warmup", "laps", "steps", "launcher")
    data = "embedded radiographs" if options.data is None else options.data.name
    return {
        "model": "resnet50",
        **{name: getattr(options, name) for name in names},
        "images": data,
        "cores_per_rank": cores,
    }


def _found(parts: Parts) -> list[Part]:
    return [part for kind in (SYNTHETIC, REAL) for part in parts.found(kind)]


def _write(
    output: Path, parts: Parts, options: argparse.Namespace, settings: dict[str, object], command: str
) -> str:  # fmt: skip
    """result.json and report.md of what there is; returns the report."""
    from lms3d.files import write_json, write_text

    found = _found(parts)
    content = accepted.content(found, options.label, settings, command)
    write_json(output / "result.json", content)
    points = accepted.points(found)
    texts = [f"# ResNet-50: {options.label}", table(points) if points else "Nothing was measured.", _NOTES]
    disturbed = [f"{p['name']}: {p['busy']:.0%} of the cores in use by others" for p in found if p["busy"] > BUSY]
    lists = {"The machine was not idle": disturbed, "Skipped": parts.skipped, "Failed": parts.failed}
    texts += ["\n".join([f"{title}:", *(f"- {line}" for line in lines)]) for title, lines in lists.items() if lines]
    texts.append(_conditions(content))
    text = "\n\n".join(texts) + "\n"
    write_text(output / "report.md", text)
    return text


def table(points: Sequence[Point]) -> str:
    """In the article's form: data, ranks, images/s."""
    head = ("data", "ranks", "images/s", "std", "95 % interval", "efficiency", "waits", "cores in use")
    lines = []
    for point in points:
        speed = point.speed
        spread = "" if speed.std is None else f"{speed.std:.2g}"
        interval = "" if speed.low is None or speed.high is None else f"{speed.low:.4g} to {speed.high:.4g}"
        efficiency = "" if point.efficiency is None else f"{point.efficiency:.1%}"
        lines.append([
            point.data, str(point.ranks), f"{speed.mean:.4g}", spread, interval, efficiency, f"{point.waiting:.2%}",
            f"{point.cores:.2f}",
        ])  # fmt: skip
    return markdown(head, lines)


def _conditions(content: dict[str, object]) -> str:
    settings: dict[str, object] = content["settings"]  # type: ignore[assignment]
    machines: list[dict[str, object]] = content["machines"]  # type: ignore[assignment]
    versions: dict[str, str] = content["versions"]  # type: ignore[assignment]
    kinds = {f"{m['processor'] or m['architecture']}, {m['cores']} cores, {m['gpu'] or 'no GPU'}" for m in machines}
    return (
        f"{settings['resolution']}^2 images, batches of {settings['batch_size']} a rank, {settings['precision']}; "
        f"{settings['warmup']} steps of warm-up, {settings['laps']} laps of {settings['steps']} steps; cores of a rank: "
        f"{settings['cores_per_rank'] or 'not bound'}. Real: {settings['images']}. Machine: {'; '.join(sorted(kinds))}. "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. Made by `{content['command']}`."
    )


def _parser() -> cli.Parser:
    gpu = machine.has_nvidia_driver()
    parser = cli.Parser(prog="python -m experiments.resnet50_benchmark", description=_DESCRIPTION, epilog=_EPILOG)
    add, count = parser.add_argument, cli.whole(1)
    add("--ranks", type=count, nargs="+", metavar="N", default=[1, 2], help="numbers of ranks (default: 1 2)")
    add("--kinds", choices=(SYNTHETIC, REAL), nargs="+", default=[SYNTHETIC, REAL], help="of data (default: both)")
    add("--data", type=cli.path, metavar="DIR", default=None, help="ChestX-ray14 folder (default: the embedded data)")
    add(
        "--batch-size", type=count, metavar="N", default=64 if gpu else 32,
        help="images a step and rank (default: 64; without a GPU 32)",
    )  # fmt: skip
    add(
        "--resolution", type=count, metavar="N", default=224 if gpu else 64,
        help="side of the images (default: 224; without a GPU 64)",
    )  # fmt: skip
    add(
        "--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"), default="float32",
        help="number format of the activations (default: float32)",
    )  # fmt: skip
    add(
        "--warmup", type=count, metavar="N", default=10 if gpu else 3, help="first steps (default: 10; without a GPU 3)"
    )
    add("--laps", type=count, metavar="N", default=10 if gpu else 6, help="to measure (default: 10; without a GPU 6)")
    add("--steps", type=count, metavar="N", default=20 if gpu else 3, help="of a lap (default: 20; without a GPU 3)")
    add(
        "--expect", type=cli.number(0), metavar="IMAGES_PER_SECOND", default=None,
        help="exit code 2 when the most ranks, on the slower kind of data, train fewer images/s (default: no judgement)",
    )  # fmt: skip
    add("--label", metavar="TEXT", default="this machine", help="name of the cluster (default: this machine)")
    add(
        "--launcher", metavar="COMMAND", default=launch.HORVODRUN,
        help="starts the ranks, {ranks} stands for their number (default: %(default)r)",
    )  # fmt: skip
    add(
        "--cores-per-rank", type=count, metavar="N", default=None,
        help="cores that each rank has, for any number of ranks (default: all shared by the most ranks; with a GPU unbound)",
    )  # fmt: skip
    add(
        "--minutes", type=cli.number(0), metavar="X", default=None,
        help="time limit: measurements that do not fit into what is left of it are skipped or ended (default: none)",
    )  # fmt: skip
    add("--again", action="store_true", default=False, help="measure anew what is there (default: off)")
    add("--output", metavar="DIR", default="resnet50-benchmark", help="where everything goes (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
