"""Puts the model, the run folder and the run back to the moment of a snapshot."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from lms3d import atomic_files, console
from lms3d.atomic_files import link_or_copy, write_text
from lms3d.ranks import replicas, variables
from lms3d.ranks.variables import Arrays
from lms3d.training import checkpoint, run_state
from lms3d.training.callbacks import best_weights, history
from lms3d.training.run import TrainingRun
from lms3d.training.run_state import Position, RunState


def start(model: Any, run: TrainingRun) -> Position | None:
    """Makes the model equal on all ranks: as rank 0 has built it, or as the last snapshot of a resumed run has it.

    Returns the position at which an earlier run is continued. InputError if the snapshot is damaged or of another model.
    """
    found = run.world.from_chief(lambda: _load(model, run)) if run.job.resume or run.memory else None
    if found is None:
        replicas.synchronise(model, run.world)
        return None
    run.state, of_ranks = found
    run.note_saved()
    own = replicas.of_rank(of_ranks, run.world)
    run.unfinished = replicas.part(own, "metrics/") if run.state.within_epoch else {}
    run.logs = {name.removeprefix("logs/"): float(value) for name, value in replicas.part(own, "logs/").items()}
    replicas.synchronise(model, run.world)
    own_variables = variables.own_variables(model)
    for name, array in replicas.part(own, "own/").items():
        own_variables[name].assign(array)
    run.commit(model, of_ranks)  # this rank may become rank 0 before its first commit is due
    return run.state.position


def _load(model: Any, run: TrainingRun) -> tuple[RunState, tuple[Arrays, ...]] | None:
    """Sets the variables and the files of the run on rank 0; returns the state for this number of ranks."""
    path = checkpoint.path_in(run.dir)
    damage = ""
    if run.memory is not None and run.memory.committed is not None:
        snapshot = run.memory.committed
    elif run.job.resume and (found := run_state.read(run.dir)):
        snapshot, damage = found
    else:
        return None
    before, now = snapshot.state, run.state
    variables.assign(variables.variables(model), snapshot.variables, path)
    if damage:
        console.say(f"{damage}: going on from the one before it, saved {before.position}")
    if now.size != before.size:
        model.optimizer.learning_rate = run_state.learning_rate(model) * now.size / before.size
    state = before.rescaled(size=now.size, steps_per_epoch=now.steps_per_epoch, samples_per_step=now.samples_per_step)
    return _with_its_files(run, state), snapshot.of_ranks


def _with_its_files(run: TrainingRun, state: RunState) -> RunState:
    """Puts history.csv and best.keras back to what they were when `state` was saved.

    If the best weights are lost, the next ones become the best: their loss would otherwise keep all later weights out.
    """
    if state.rows:
        write_text(run.dir / history.FILE, history.as_csv(state.rows))
    path, older = best_weights.path_in(run.dir), best_weights.older_in(run.dir)
    if not state.best or _has_digest(path, state.best):
        return state
    if _has_digest(older, state.best):
        link_or_copy(older, path)
        return state
    console.say(f"{path} is not what this run wrote: the weights after the next epoch take its place")
    return replace(state, best_loss=math.inf, best="")


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and atomic_files.digest(path) == digest
