"""The position of a run as one frozen value, and everything that a checkpoint holds with it.

A `RunState` is replaced, never changed, as training goes on. With the arrays of that moment it becomes a `RunSnapshot`:

    variables     model and optimiser of rank 0 (learning rate and random states included)
    of_ranks      in the midst of an epoch, the arrays that each rank has for itself: logs/, metrics/ (running sums), and own/
                  (moving statistics, random states)

`RunSnapshot.write` and `read` are the only way to and from `last/`; the file guards all of it with its digest (`checkpoint`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.common import json_values
from lms3d.errors import InputError
from lms3d.ranks import replicas, variables
from lms3d.ranks.messages import sendable
from lms3d.ranks.variables import Arrays
from lms3d.ranks.world import World
from lms3d.training import checkpoint

Row = dict[str, float]


@sendable
@dataclass(frozen=True)
class Position:
    """How far a run is: `step` steps of `epoch` are done (from 0). With all steps done, validation is still due."""

    epoch: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"in epoch {self.epoch + 1} after step {self.step}" if self.step else f"after epoch {self.epoch}"


@sendable
@dataclass(frozen=True, kw_only=True)
class RunState:
    """What a run needs to go on as if it had never stopped, but for the arrays; equal on all ranks."""

    size: int
    """Number of ranks."""

    steps_per_epoch: int

    samples_per_step: int
    """The samples of a step on all ranks together."""

    position: Position = Position()

    samples: int = 0
    """The samples that all ranks together have taken from the stream so far."""

    rows: tuple[Row, ...] = ()
    """The finished epochs, one per line of history.csv."""

    seconds: float = 0.0
    """Time spent on the epoch under way."""

    best_loss: float = math.inf

    best: str = ""
    """The SHA-256 of the best.keras that belongs to `best_loss`; "" if there is none, or an earlier version wrote it."""

    slabs: Mapping[str, str] = field(default_factory=dict)
    """Kind and batch shapes of a step -> the slabs that it is cut into, such as "16/8" (`LMS.kept_slabs`). They decide the last
    bits of a result, so a run keeps them."""

    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """name -> attribute -> value of the callbacks that keep a state, at the end of the last epoch."""

    @property
    def stopped_early(self) -> bool:
        """Whether the validation loss stopped getting better."""
        return bool(self.callbacks.get("early_stopping", {}).get("stopped_epoch"))

    @property
    def out_of_time(self) -> bool:
        """Whether it was a demonstration, and its time was over."""
        return bool(self.callbacks.get("time_guard", {}).get("reached"))

    @property
    def within_epoch(self) -> bool:
        """Whether some steps of the epoch are done and others are not: then the metrics are unfinished sums."""
        return 0 < self.position.step < self.steps_per_epoch

    def rescaled(self, *, size: int, steps_per_epoch: int, samples_per_step: int) -> RunState:
        """The state for another number of ranks: the step with the same count of samples; a finished epoch stays finished."""
        step = self.position.step
        if samples_per_step != self.samples_per_step:
            step = round(step * self.samples_per_step / samples_per_step)
        last = self.position.step == self.steps_per_epoch
        step = steps_per_epoch if last else min(step, steps_per_epoch)
        return replace(
            self, size=size, steps_per_epoch=steps_per_epoch, samples_per_step=samples_per_step,
            position=Position(self.position.epoch, step),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The state as a checkpoint holds it."""
        position = (self.position.epoch, self.position.step)
        return {**vars(self), "position": position, "stopped_early": self.stopped_early}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], source: object) -> RunState:
        """The inverse of `to_json`, also for files of earlier versions. InputError, which names `source`, for a file of the very
        first versions, and for one that no version has written."""
        try:
            return cls._from_json(content, source)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{source} holds a state that this version of lms3d cannot use ({type(error).__name__}: {error}); resume with the "
                "version that wrote it, or start another run, with another --output"
            ) from None

    @classmethod
    def _from_json(cls, content: Mapping[str, Any], source: object) -> RunState:
        if "samples_per_step" not in content:
            raise InputError(
                f"{source} is of a version of lms3d that is too early; start another run, with another --output"
            )
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        values = {**known, "position": Position(*content["position"]), "rows": tuple(content["rows"])}
        json_values.require_types(values, cls)
        json_values.require_types(vars(values["position"]), Position)
        state = cls(**values)
        if min(state.size, state.steps_per_epoch, state.samples_per_step) < 1 or state.position.step < 0:
            raise ValueError("counts below 1")
        floats_of_rows = [value for row in state.rows for value in row.values()]
        if not all(isinstance(value, int | float) for value in floats_of_rows):
            raise TypeError("rows without numbers")
        if not all(isinstance(one, dict) for one in state.callbacks.values()):
            raise TypeError("callbacks without names")
        return state


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """A run at one moment: all that it needs to go on."""

    state: RunState
    variables: Arrays
    of_ranks: tuple[Arrays, ...] = ()
    """The arrays of each rank, in the order of the ranks; () at the end of an epoch."""

    def write(self, run_dir: Path) -> None:
        """Writes the snapshot to `last/`, which keeps the one before. StorageError, with nothing changed, if that fails."""
        arrays = {**self.variables, **replicas.joined(self.of_ranks)}
        checkpoint.save(checkpoint.path_in(run_dir), arrays, self.state.to_json())

    def copied(self) -> RunSnapshot:
        """The same snapshot with copied arrays: the original ones may share the memory of the variables."""
        of_ranks = tuple(_copied(arrays) for arrays in self.of_ranks)
        return replace(self, variables=_copied(self.variables), of_ranks=of_ranks)


def read(run_dir: Path) -> tuple[RunSnapshot, str] | None:
    """The newest intact snapshot in `last/`, and what is wrong with a newer one, "" if nothing is; None without a snapshot."""
    if not checkpoint.generations(run_dir):
        return None
    path = checkpoint.path_in(run_dir)
    arrays, content, damage = checkpoint.latest(path)
    kept = {name: array for name, array in arrays.items() if not name.startswith("ranks/")}
    state = RunState.from_json(content, path)
    return RunSnapshot(state=state, variables=kept, of_ranks=replicas.split(arrays)), damage


def take(model: Any, state: RunState, of_ranks: tuple[Arrays, ...] = ()) -> RunSnapshot:
    """The snapshot of this moment."""
    return RunSnapshot(state=state, variables=variables.read(variables.variables(model)), of_ranks=of_ranks)


def own_arrays(model: Any, state: RunState, logs: Row, world: World) -> Arrays:
    """The arrays that only this rank has in the midst of an epoch. logs: the metrics after its last step."""
    own = {f"logs/{name}": np.asarray(value) for name, value in logs.items()}
    if state.position.step < state.steps_per_epoch:  # else the sums are complete: `logs` has them
        own |= variables.read(variables.metric_variables(model))
    if world.size > 1:
        own |= variables.read(variables.own_variables(model))
    return own


def floats(logs: Mapping[str, Any] | None) -> Row:
    """Keras logs, which may hold tensors, as plain numbers."""
    return {name: float(np.asarray(value)) for name, value in (logs or {}).items()}


def learning_rate(model: Any) -> float:
    """The learning rate of the next step."""
    return float(np.asarray(model.optimizer.learning_rate))


def _copied(arrays: Arrays) -> Arrays:
    return {name: np.array(array) for name, array in arrays.items()}
