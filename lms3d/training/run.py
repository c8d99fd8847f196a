"""A training run in progress: what its callbacks share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lms3d.ranks.elastic import Memory
from lms3d.ranks.variables import Arrays
from lms3d.ranks.world import World
from lms3d.training import run_state
from lms3d.training.interrupt import Interrupt
from lms3d.training.run_state import Row, RunState


@dataclass(frozen=True, kw_only=True)
class Data:
    """What one rank learns from."""

    training: Callable[[int], Any]
    """The number of a sample -> the endless dataset of this rank's batches, from that sample of the common stream on."""

    validation: Any
    """The finite dataset of this rank's share, or an `OwnValidation`."""

    validation_weight: float = 1.0
    """The samples in that share; 0 if they are borrowed from another rank."""


@dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """How long to train, and how the learning rate changes meanwhile."""

    epochs: int
    """The largest number of epochs."""

    steps_per_epoch: int

    validation_steps: int | None = None
    """The validation batches of this rank; None: all of its validation data."""

    batch_size: int = 1
    """The samples of a step on one rank."""

    patience: int = 50
    """Training ends after this many epochs without a better validation loss."""

    plateau_factor: float = 0.5
    """The learning rate is multiplied by this after `plateau_patience` epochs without a better validation loss."""

    plateau_patience: int = 10

    decay: str = "plateau"
    """How the learning rate falls: "plateau", or "cosine" over all epochs."""

    warmup_epochs: int = 0
    """The epochs over which the rate grows from the rate of one rank to that of all ranks, which is the model's own."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The folder of a run, and the ranks that take part."""

    run_dir: Path

    world: World = field(default_factory=World)

    resume: bool = False
    """Whether to go on from `last/` in the run folder."""

    memory: Memory | None = None
    """The memory of an elastic job (`elastic.run`), whose commit is preferred to `last/`; None for any other job."""

    record_bits: Path | None = None
    """The folder in which each rank records the bits of its steps (`callbacks.bit_record`); None: nothing is recorded."""

    trackers: Sequence[str] = ("tensorboard",)
    """The trackers that follow the run, by their names in `trackers.TRACKERS`."""

    name: str | None = None
    """The name of the run for trackers; None: they invent one."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """What trackers note of the options: JSON values, no paths."""

    on_interrupt: Callable[[], None] = lambda: None
    """Tells the user that the step is being finished; another thread calls it at the first Ctrl-C."""


class TrainingRun:
    """The `state` of a run, and what its callbacks need besides.

    full_rate: the learning rate of all ranks together, after the warm-up. logs: this rank's metrics after the last step of the
    present epoch. unfinished: the running sums of the metrics, to be put back when an interrupted epoch begins again. callbacks:
    all callbacks of the run, in order. validation_batches: the largest number that a rank has. saved: what `last/` holds, in
    words, for messages. before_saving: puts the weights that a snapshot keeps into the model.
    """

    def __init__(self, model: Any, data: Data, schedule: TrainingSchedule, job: Job, interrupt: Interrupt) -> None:
        self.data, self.schedule, self.job, self.interrupt = data, schedule, job, interrupt
        self.dir, self.world, self.memory = job.run_dir, job.world, job.memory
        self.full_rate = run_state.learning_rate(model)
        self.validation_batches = int(self.world.largest([schedule.validation_steps or 0])[0])
        self.state = RunState(
            size=self.world.size, steps_per_epoch=schedule.steps_per_epoch,
            samples_per_step=self.world.size * schedule.batch_size,
        )  # fmt: skip
        self.logs: Row = {}
        self.unfinished: Arrays = {}
        self.callbacks: Sequence[Any] = ()
        self.saved = "nothing was saved before"
        self.before_saving: Callable[[], None] = lambda: None
        self._begin = 0.0

    def update(self, **changes: Any) -> None:
        """Replaces fields of the state."""
        self.state = replace(self.state, **changes)

    def start_clock(self) -> None:
        """Starts to measure the time of an epoch that begins or continues."""
        self._begin = time.monotonic()

    def stop_clock(self) -> None:
        """Adds the time since `start_clock` to the state."""
        self.update(seconds=self.state.seconds + time.monotonic() - self._begin)
        self.start_clock()

    def save(self, model: Any, of_ranks: tuple[Arrays, ...] = ()) -> None:
        """Writes a snapshot to `last/` on rank 0; all ranks of an elastic job keep it in memory."""
        self.before_saving()
        if self.world.is_chief:
            run_state.take(model, self.state, of_ranks).write(self.dir)
        self.commit(model, of_ranks)
        self.note_saved()

    def commit(self, model: Any, of_ranks: tuple[Arrays, ...]) -> None:
        """Keeps a snapshot in the memory of an elastic job."""
        if self.memory is not None:
            self.memory.commit(run_state.take(model, self.state, of_ranks).copied())

    def note_saved(self) -> None:
        """Notes for messages that `last/` holds this moment."""
        self.saved = f"last/ stays as it was saved {self.state.position}"

    def own_of_ranks(self, model: Any) -> tuple[Arrays, ...]:
        """The arrays that each rank has for itself in the midst of an epoch, for a snapshot."""
        self.stop_clock()
        return tuple(self.world.everyone(run_state.own_arrays(model, self.state, self.logs, self.world)))
