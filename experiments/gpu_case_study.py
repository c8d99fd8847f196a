"""`python -m experiments.gpu_case_study`: what does LMS do on the GPU of this machine?

1. The first minute, on a small cube: the same bits, hidden transfers, true costs? A verdict for each question.
2. 192^3 from half of its memory down to the floor, beside the step without LMS, TFLMS's plan and PyTorch; 256^3 under 16 GB;
   16 bits.
3. Where ops are placed; the largest cubes without and with LMS; predicted beside measured.

Ten minutes are enough for most of it. Every training is a process of its own, with its own hard limit; one that crashes costs no
other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from functools import partial
from pathlib import Path

from lms3d import cli, errors
from lms3d.atomic_files import write_json
from lms3d.experiments.accelerator import card as cards
from lms3d.experiments.accelerator import page, scale
from lms3d.experiments.accelerator.card import Card
from lms3d.experiments.accelerator.sections import SECTIONS
from lms3d.experiments.accelerator.study import FAILED, GpuStudy
from lms3d.experiments.accelerator.trainings import Trainings
from lms3d.experiments.harness import command
from lms3d.experiments.harness.command import SomeFailed
from lms3d.experiments.reporting import runs

OUTPUT, REHEARSAL_OUTPUT = "runs/gpu-case-study", "runs/gpu-rehearsal"

_EPILOG = """\
examples:
  python -m experiments.gpu_case_study
  python -m experiments.gpu_case_study --only check     # the first minute: does it work here?
  python -m experiments.gpu_case_study --minutes 20 --output runs/gpu-case-study      # go on
  python -m experiments.gpu_case_study --rehearse       # on a processor, at toy size: does every section run?

writes into --output: report.md, gpu_case_study.csv, sections/, parts/, logs/"""
_EXITS = {
    0: "done or out of time (run again to go on)",
    1: "a section failed (the page says why)",
    2: "no GPU or wrong option",
}


def _measure(options: argparse.Namespace, typed: str) -> None:
    started = time.monotonic()
    card = cards.found(rehearsed=options.rehearse)
    output = command.folder(options, REHEARSAL_OUTPUT if options.rehearse else OUTPUT)
    _remember(card, options.rehearse, output)
    with_peers = importlib.util.find_spec("torch") is not None
    on_card = partial(scale.of_gpu, card.half_precision, card.memory_bytes or 0)
    chosen = (scale.of_rehearsal if options.rehearse else on_card)(with_peers=with_peers)
    trainings = Trainings(
        output,
        least_seconds=chosen.least_seconds,
        card_bytes=card.memory_bytes,
        side_by_side=chosen.side_by_side,
        need_bytes=chosen.need,
    )
    study = GpuStudy(output, chosen, trainings, rehearsed=options.rehearse)
    try:
        with command.stoppable():
            study.run(options.minutes - (time.monotonic() - started) / 60, only=options.only)
    finally:
        text = page.write(study, card, typed)
        failed = [name for name, state in study.states.items() if state.outcome == FAILED]
        ended = sys.exception()
        code = errors.Interrupted.exit_code if isinstance(ended, errors.Interrupted) else int(bool(ended or failed))
        # So that `experiments.report` can show the page.
        runs.note(output, typed, str(card), exit_code=code, seconds=time.monotonic() - started)
    print(text)
    print(f"written: {output}")
    if failed:
        raise SomeFailed(f"these sections failed: {', '.join(failed)}; {output / 'report.md'} says why")


def _remember(card: Card, rehearsed: bool, output: Path) -> None:
    """Keeps with the output what it was measured on. InputError if that was something else."""
    path, settings = output / "settings.json", {"card": card.name, "rehearsed": rehearsed}
    before = json.loads(path.read_text()) if path.exists() else settings
    if before != settings:
        raise errors.InputError(
            f"--output {output}: found results of {before.get('card')}{', rehearsed' if before.get('rehearsed') else ''}, and this "
            f"is {card.name}; give another --output"
        )
    write_json(path, settings)


def _options(parser: cli.Parser) -> None:
    add = parser.add_argument
    minutes = "time limit: shared out among the sections; what is left is for the next call (default: 10)"
    add("--minutes", type=cli.number(0), metavar="X", default=10.0, help=minutes)
    names = [section.name for section in SECTIONS]
    only = f"run these sections alone: {', '.join(names)} (default: all)"
    add("--only", nargs="+", choices=names, metavar="SECTION", default=None, help=only)
    add("--rehearse", action="store_true", default=False, help="the same at toy size on a processor (default: off)")
    command.add_output(parser, None, f"{OUTPUT}; rehearsal: {REHEARSAL_OUTPUT}")


main, _parser = command.of("gpu_case_study", _measure, _options, __doc__, _EPILOG, exits=_EXITS, resumed=True)


if __name__ == "__main__":
    sys.exit(main())
