"""Training at rising resolutions: each stage is a run of its own, and the next stage starts from its best weights.

    RUN_DIR/stages/64/    a whole run folder at 64^3 -> RUN_DIR/stages/96/ -> RUN_DIR

The networks are fully convolutional: weights of one resolution work at any other. A coarse stage sees many more cases in the same
time. A run that was stopped in a stage continues there; stages that are done are not touched.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lms3d import console
from lms3d.config import StagedConfig, flag
from lms3d.errors import InputError
from lms3d.ranks.elastic import Memory
from lms3d.ranks.world import World
from lms3d.training import checkpoint, config_file, demo, needs, run_folder, run_state, summary
from lms3d.training import session as training
from lms3d.training.run_lock import RunLock
from lms3d.training.session import Session
from lms3d.training.task import Task

FOLDER = "stages"


def train_all(session: Session, task: Task, world: World, memory: Memory | None) -> None:
    """Trains the stages of a run one after another, and then the run itself."""
    session = replace(session, options=needs.with_demonstration_limit(session.options, task))
    if memory is not None and isinstance(session.options, StagedConfig) and session.options.stages:
        raise InputError(
            "--stages: not with --elastic, which keeps one run in memory; train the stages first, then --start-from"
        )
    if memory is not None:
        training.train(session, task, world, memory)
        return
    with RunLock() as lock:  # of the present stage: another command may name its folder with --output
        following = _parts(session, lock) if world.is_chief else iter(())
        again = False
        while (part := world.from_chief(lambda: next(following, None))) is not None:
            if again:
                _forget()
            training.train(part, task, world, None, again=again)
            again = True


def _parts(session: Session, lock: RunLock) -> Iterator[Session]:
    """The sessions of the stages that are not done, then the session of the run itself. Each is made once the last one has ended.

    InputError if another training has the folder of a stage.
    """
    if session.resuming:  # the run itself has begun, so its stages are done
        if _done(session) and (session.run_dir / "lms_report.md").exists():
            console.say(_nothing_left(session))
        else:
            yield session
        return
    part, options = session, session.options
    for resolution, epochs in _planned(session):
        assert isinstance(options, StagedConfig), "only such a run has stages"
        run_folder.claim(_folder(session, resolution), lock)
        stage = _stage(part, options, resolution, epochs)
        options = options.starting_from(stage.run_dir)
        part = replace(part, options=options)
        if not _done(stage):
            console.say(f"Stage at {resolution}^3, in {stage.run_dir}")
            run_folder.announce(session.run_dir, session.options, session.arguments)
            yield stage
    lock.release()
    yield part


def _folder(session: Session, resolution: int) -> Path:
    return session.run_dir / FOLDER / str(resolution)


def _stage(session: Session, options: StagedConfig, resolution: int, epochs: int | None) -> Session:
    run_dir = _folder(session, resolution)
    options = options.at_stage(resolution, epochs)
    resuming = bool(checkpoint.generations(run_dir))
    if resuming:
        options = _as_begun(run_dir, options)
    share = demo.STAGES[resolution] if session.demonstrating and epochs is None else 1.0
    return replace(
        session,
        options=options,
        run_dir=run_dir,
        resuming=resuming,
        profile=None,
        record_bits=session.record_bits and session.record_bits / str(resolution),
        whole=session.run_dir,
        time_share=share,
    )


def _as_begun(run_dir: Path, options: StagedConfig) -> StagedConfig:
    """The options with which the stage was begun, epochs included. InputError if the present ones would learn something else."""
    stored, _ = config_file.load(run_dir, type(options).from_json)
    before = stored.to_json()
    for name, value in options.to_json().items():
        if name not in config_file.FREE_ON_RESUME | {"stages"} and before[name] != value and value is not None:
            raise InputError(
                f"{run_dir}: found a stage with {flag(name)} {before[name]}; expected {value}; use another --output"
            )
    lengths = {name: getattr(stored, name) for name in ("epochs", "steps_per_epoch", "validation_steps")}
    return replace(options, **lengths)


def _done(stage: Session) -> bool:
    found = run_state.read(stage.run_dir) if stage.resuming else None
    if found is None or not summary.drawn(stage.run_dir):
        return False
    state, epochs = found[0].state, stage.options.epochs or needs.DEFAULT_EPOCHS
    return state.stopped_early or (state.out_of_time and stage.demonstrating) or state.position.epoch >= epochs


def _nothing_left(session: Session) -> str:
    """What a user reads who resumes a run that has ended: why it ended, and what to type now."""
    found = run_state.read(session.run_dir)
    assert found is not None
    state, run = found[0].state, session.run_dir
    epochs = session.options.epochs or needs.DEFAULT_EPOCHS
    longer = ", or train longer with --resume --epochs N"
    ended, more = f"epoch {epochs} of {epochs} is done", longer
    if state.out_of_time:
        ended = f"ended after epoch {state.position.epoch}, when the time of a demonstration was over"
    if state.stopped_early:
        ended, more = f"ended after epoch {state.position.epoch}, without a better validation loss for long", ""
    return f"{run}: nothing is left to train: {ended}; next: python -m lms3d.predict {run}{more}"


def _planned(session: Session) -> Sequence[tuple[int, int | None]]:
    """The stages that the user asked for, or the stages of a demonstration at a high resolution."""
    options = session.options
    if not isinstance(options, StagedConfig):
        return ()
    if options.stages or not session.demonstrating or options.sample_shape() != options.volume_shape():
        return options.stages
    return tuple((lower, None) for lower in demo.STAGES if lower < min(options.volume_shape()))


def _forget() -> None:
    """Frees the network and the data of the last stage before the next one is made."""
    import keras

    keras.backend.clear_session()
    gc.collect()
