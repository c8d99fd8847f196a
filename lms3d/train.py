"""`python -m lms3d.train`: train a network on whole volumes under a memory limit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lms3d import cli, command_options, errors, tasks
from lms3d.data import pseudonyms
from lms3d.data.errors import unwrap
from lms3d.device import circumstances
from lms3d.errors import InputError
from lms3d.ranks import elastic, job
from lms3d.ranks.world import World
from lms3d.tasks import task_of
from lms3d.training import option_file, run_folder, session, stages, trackers
from lms3d.training.run_lock import RunLock
from lms3d.training.session import Session

_DESCRIPTION = """\
Train a 3D U-Net on whole volumes, under a memory limit that it would not fit into by itself.

Without --data it makes an artificial data set first (once), so that everything can be tried at once:
  python -m lms3d.train --resolution 64 --epochs 3
With your own data:
  python -m lms3d.train --data ~/MICCAI_BraTS2020_TrainingData --resolution 192"""

_EPILOG = """\
writes into RUN_DIR: config.json, run.toml, split.json, history.csv, best.keras, last/ (for --resume), lms_plan.json,
lms_report.md, lms_stats.csv, figures/*.png and tensorboard/. Go on with python -m lms3d.predict RUN_DIR.
exit codes: 0 done, 2 wrong option or wrong input, 3 does not fit into the memory limit, 130 interrupted (resumable)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, prepare, train, summarise. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _train(_parsed(arguments), arguments))


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options that were given. All ranks get the same ones, and one rank reports what is wrong."""
    try:
        given = _given(_parser(), arguments)
        command_options.require_a_plan(given)
        command_options.require_a_fixed_world(given)
        return given
    except InputError as error:
        with job.joined():
            raise errors.of_all_ranks(error) from None


def _given(parser: cli.Parser, arguments: Sequence[str]) -> dict[str, Any]:
    """What was typed, and what the file of --config has beside that."""
    typed = vars(parser.parse_args(arguments))
    path = typed.pop("config", None)
    in_file = option_file.read(path, parser) if path else {}
    return option_file.merged(in_file, typed, tasks.kind_of(in_file | typed))


def _train(given: dict[str, Any], arguments: Sequence[str]) -> None:
    circumstances.note_code()
    pseudonyms.start(given.pop("anonymous", False))
    dry_run, resume, elastically = (given.pop(name, False) for name in ("dry_run", "resume", "elastic"))
    profile, output = given.pop("profile", None), given.pop("output", None)
    average, record_bits = given.pop("stats_average", None), given.pop("record_bits", None)
    backend = given.pop("ranks", "auto")
    if dry_run:
        options = run_folder.planned(given, output, resume, tasks)
        session.dry_run(options, task_of(options))
        return
    lock = RunLock()  # rank 0 holds it until it ends

    def choose_session() -> Session:
        trackers.require_installed(given.get("tracker", ()))  # before a folder is made
        options, run_dir, resuming = run_folder.choose_run(given, output, resume, lock, tasks)
        trackers.require_installed(options.tracker)  # a resumed run has its own
        return Session(
            options=options, run_dir=run_dir, resuming=resuming, profile=profile, arguments=tuple(arguments),
            stats_average=average, record_bits=record_bits, named=not pseudonyms.is_on(),
        )  # fmt: skip

    def train_once(world: World, memory: elastic.Memory | None = None) -> None:
        chosen = session.agree(choose_session, lock, world, memory)
        with _wrong_input_unwrapped():
            stages.train_all(chosen, task_of(chosen.options), world, memory)

    with lock:
        if elastically:
            elastic.run(train_once)
        else:
            with job.joined(backend) as world:
                train_once(world)


@contextmanager
def _wrong_input_unwrapped() -> Iterator[None]:
    """Raises an error in a data file as it was: tf.data wraps it in an error of its own."""
    try:
        yield
    except Exception as error:
        wrong_input = unwrap(error)
        if wrong_input is None or wrong_input is error:
            raise
        raise wrong_input from error


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.train", description=_DESCRIPTION, epilog=_EPILOG)
    command_options.add_data_options(parser)
    command_options.add_model_options(parser)
    command_options.add_task_options(parser)
    command_options.add_step_options(parser)
    command_options.add_training_options(parser)
    command_options.add_memory_options(parser)
    command_options.add_run_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
