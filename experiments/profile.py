"""`python -m experiments.profile`: what does the device do in a training step, and what do the links?

1. A real training (`lms3d.train`) with TensorFlow's profiler over one range of batches, or runs that were trained with --profile.
2. From the profile: busy share of the device, bytes and GB/s each way, overlap of transfers with computing, gaps between batches,
   idle time within steps; a timeline, and a trace for ui.perfetto.dev.
3. On a GPU from its own streams. On a CPU from the ops of the step, and from marks of the swap tier: there a transfer is a copy to
   the page cache of a file, made by a thread of the same cores.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lms3d import cli, tasks
from lms3d.device import machine
from lms3d.experiments.harness import command, commands, page
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.profiling import lanes, measure, report, xplane
from lms3d.experiments.profiling.report import ProfiledRun
from lms3d.units import format_size

_EPILOG = """\
examples:
  python -m experiments.profile --resolution 96 --memory-limit 785MiB
  python -m experiments.profile --resolution 96 --memory-limit 785MiB --mapped --output profile-mapped
  python -m experiments.profile --resolution 192 --memory-limit 16GiB --batches 2:20-50 --data ~/BraTS2017      (a GPU)
  python -m experiments.profile runs/192 runs/192-b --output two        # runs of lms3d.train --profile EPOCH:FIRST-LAST

writes into --output: report.md, profile.csv, profile.json, timeline.png, NAME.trace.json (open it in ui.perfetto.dev), run/"""


def _profile(options: argparse.Namespace, typed: str) -> None:
    for run_dir in options.runs:  # before anything is written
        xplane.newest(run_dir)
    output = command.folder(options)
    run_dirs = options.runs or [_trained(options, output / "run")]
    traces = [(_name(run_dir), lanes.read(xplane.newest(run_dir))) for run_dir in run_dirs]
    runs = [_profiled(run_dir, name, trace) for run_dir, (name, trace) in zip(run_dirs, traces, strict=True)]
    print(write(runs, traces, output, [_conditions(runs), f"Made by `{typed}`."]))
    print(f"written: {output}")


def write(
    runs: Sequence[ProfiledRun], traces: Sequence[tuple[str, Any]], output: Path, conditions: Sequence[str]
) -> str:
    """Writes report, CSV, JSON, timeline, and a trace for each run, and returns the report."""
    from lms3d.experiments.profiling import figure, perfetto

    report.write(runs, output)
    figure.draw(traces, output / "timeline.png")
    names = [f"{number}.trace.json" for number, _ in enumerate(traces, start=1)]
    for name, (_, trace) in zip(names, traces, strict=True):
        perfetto.write(trace, output / name)
    listed = ", ".join(f"`{file}` ({name})" for file, (name, _) in zip(names, traces, strict=True))
    traces_of = f"For ui.perfetto.dev: {listed}."
    sections = ["# Profile of training steps", report.tables(runs), report.NOTES, *conditions, traces_of]
    return page.write(output / "report.md", sections)


def _trained(options: argparse.Namespace, run_dir: Path) -> Path:
    """The run in `run_dir`, trained unless it has a profile: a range of batches that was missed cannot be profiled any more."""
    if options.again or not list(run_dir.rglob("*.xplane.pb")):
        shutil.rmtree(run_dir, ignore_errors=True)
        commands.run([*of_module("lms3d.experiments.profiling.training"), *train_words(options, run_dir)])
    return run_dir


def train_words(options: argparse.Namespace, run_dir: Path) -> list[str]:
    """The options of `lms3d.train`."""
    epoch, first, last = options.batches
    words: list[Any] = ["--model", options.model, "--resolution", options.resolution, "--epochs", epoch]
    words += ["--profile", f"{epoch}:{first}-{last}", "--output", run_dir]
    words += ["--steps-per-epoch", last, "--validation-steps", 1] if options.data is None else ["--data", options.data]
    words += ["--memory-limit", options.memory_limit] if options.memory_limit else []
    if not machine.has_nvidia_driver() and not options.mapped:
        words += ["--swap-tier", "copied"]
    return [*map(str, words), *shlex.split(options.train_options)]


def _profiled(run_dir: Path, name: str, trace: Any) -> ProfiledRun:
    found = measure.profile(trace)
    return ProfiledRun(name=name, profile=found, counted=report.counted_bytes(run_dir / "lms_stats.csv", found))


def _name(run_dir: Path) -> str:
    """The name of a run in tables."""
    options, content = tasks.load(run_dir)
    size = options.size_text().replace("^3", "³")
    swaps = {"copied": ", copied back"}.get(options.swap_tier, "")
    limit = f" in {format_size(content['memory_limit_bytes'])}" if options.memory_limit else ""
    return f"{options.model} {size}{limit}{swaps if options.lms else ', no LMS'}"


def _conditions(runs: Sequence[ProfiledRun]) -> str:
    from lms3d.engine.tensorflow import speeds

    gpu = any(run.profile.device != "CPU" for run in runs) and machine.has_nvidia_driver()
    return page.machine(devices=[speeds.device_name("GPU:0")] if gpu else [])


def _options(parser: cli.Parser) -> None:
    gpu = machine.has_nvidia_driver()
    add = parser.add_argument
    given = "runs of train --profile (default: train one)"
    add("runs", type=cli.path, nargs="*", default=[], metavar="RUN_DIR", help=given)
    command.add_model(parser)
    command.add_resolution(parser, 192 if gpu else 64, "64; with a GPU 192")
    limit = "hard limit (default: that of lms3d.train; with a GPU 16GiB)"
    command.add_size(parser, "--memory-limit", 16 << 30 if gpu else None, limit)
    which = "which batches, counted from 1 (default: 2:4-8, with a GPU 2:20-50, the case study's)"
    batches, default = cli.checked(cli.profile_range, "range"), (2, 20, 50) if gpu else (2, 4, 8)
    add("--batches", type=batches, metavar="EPOCH:FIRST-LAST", default=default, help=which)
    mapped = "on a CPU, read swapped tensors in place, as lms3d.train does, and do not copy them back (default: off)"
    add("--mapped", action="store_true", default=False, help=mapped)
    add("--data", type=cli.path, metavar="DIR", default=None, help="a BraTS folder (default: the embedded data)")
    command.add_train_options(parser)
    command.add_again(parser)
    command.add_output(parser, "profile")


main, _parser = command.of("profile", _profile, _options, __doc__, _EPILOG, exits={3: "does not fit into the limit"})


if __name__ == "__main__":
    sys.exit(main())
