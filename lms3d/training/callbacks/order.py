"""The order of the callbacks of a run, and their registry.

A new callback is a file like `step_counter.py` and a line in `CALLBACKS`. It states its `place`, is made from the `TrainingRun`,
and names the attributes that must survive a resume: `checkpointing` saves and restores these.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, auto
from typing import Any, ClassVar

import keras

from lms3d.registry import Registry
from lms3d.training.run import TrainingRun


class Place(IntEnum):
    """The order in which Keras calls each hook of all callbacks; at one place they keep the order in which they were given."""

    LMS = auto()  # replaces the function of the step before anybody else looks at the model
    VALIDATION = auto()  # before all that read the scores
    RANK_MEAN = (
        auto()
    )  # replaces a rank's logs by the mean of all ranks: the callbacks below then decide alike everywhere
    TASK = auto()  # adds to the logs what callbacks below show and write down, such as the AUROC of all ranks' images
    TIME_GUARD = auto()  # asks for the end of training before the ranks agree on it
    PROFILE = auto()  # as close to the step as the order allows
    BIT_RECORD = auto()  # LMS calls it within the step
    PROGRESS = auto()  # shows the logs as they will be written
    PLATEAU = auto()  # lowers the learning rate; puts the rate of this epoch into the logs
    COSINE = auto()  # before WARM_UP, too
    EARLY_STOPPING = auto()  # asks for the end, before ranks agree on it and the state is saved
    WARM_UP = auto()  # after PLATEAU, whose cut of the rate it takes over; before a step is counted
    KEPT_SLABS = auto()  # before anything is saved
    STEP_COUNTER = auto()  # the step is done: everything saved from here on counts it
    HISTORY = auto()  # before BEST_WEIGHTS: a resume removes a row, or weights, that are newer than its checkpoint
    TRACKING = auto()  # after HISTORY, whose row it passes on
    BEST_WEIGHTS = auto()  # before CHECKPOINT, which knows the best file by its digest
    AVERAGED_WEIGHTS = auto()  # after BEST_WEIGHTS, which keeps the average; before the weights themselves are saved
    RANK_AGREEMENT = auto()  # after everything that may ask for the end: the ranks leave together
    CHECKPOINT = auto()  # last: saves what the others have decided, and restores what they reset


class TrainingCallback(keras.callbacks.Callback):
    """A callback of every run."""

    place: ClassVar[Place] = Place.TASK

    name: ClassVar[str] = ""
    """The name of its state in a checkpoint; needed if `kept` is not empty."""

    kept: ClassVar[Sequence[str]] = ()
    """The attributes that survive a resume: JSON values, saved at the end of an epoch."""

    @classmethod
    def wanted(cls, run: TrainingRun) -> bool:
        """Whether this run needs the callback."""
        return True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.kept and not cls.name:
            raise TypeError(f"{cls.__name__} keeps {', '.join(cls.kept)} over a resume; give it a `name` for them")

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        self.run = run

    def on_run_end(self, error: BaseException | None) -> None:
        """Called once, after the last `fit` of the run. error: what ended it; None if it ended by itself."""


CALLBACKS: Registry[type[TrainingCallback]] = Registry(
    "training callback",
    validation="lms3d.training.callbacks.validation:Validation",
    rank_mean="lms3d.training.callbacks.rank_mean:RankMean",
    bit_record="lms3d.training.callbacks.bit_record:BitRecord",
    plateau="lms3d.training.callbacks.plateau:Plateau",
    cosine="lms3d.training.callbacks.cosine:Cosine",
    early_stopping="lms3d.training.callbacks.plateau:EarlyStopping",
    warm_up="lms3d.training.callbacks.warm_up:WarmUp",
    kept_slabs="lms3d.training.callbacks.kept_slabs:KeptSlabs",
    step_counter="lms3d.training.callbacks.step_counter:StepCounter",
    history="lms3d.training.callbacks.history:HistoryFile",
    tracking="lms3d.training.callbacks.tracking:Tracking",
    best_weights="lms3d.training.callbacks.best_weights:BestWeights",
    averaged_weights="lms3d.training.callbacks.averaged_weights:AveragedWeights",
    rank_agreement="lms3d.training.callbacks.rank_agreement:RankAgreement",
    checkpoint="lms3d.training.callbacks.checkpointing:Checkpointing",
)


def with_place(place: Place, callback: Any) -> Any:
    """The same callback, at this place: its class knows nothing of the order."""
    callback.place = place
    return callback


def build(run: TrainingRun, given: Iterable[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """The callbacks that every run has and those given for this one, in order; one that states no place runs at TASK."""
    registered = [CALLBACKS[name](run) for name in CALLBACKS.names if CALLBACKS[name].wanted(run)]
    return sorted([*given, *registered], key=lambda callback: getattr(callback, "place", Place.TASK))


@contextlib.contextmanager
def told_of_the_end(callbacks: Iterable[Any]) -> Iterator[None]:
    """Calls `on_run_end` of the callbacks that have one after the block."""
    ended: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ended = error
        raise
    finally:
        for one in callbacks:
            if isinstance(one, TrainingCallback):
                one.on_run_end(ended)


def states(callbacks: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Name -> attribute -> value, for the callbacks that keep a state."""
    keeping = [one for one in callbacks if getattr(one, "kept", ())]
    return {one.name: {name: copy.deepcopy(getattr(one, name)) for name in one.kept} for one in keeping}


def restore(callbacks: Iterable[Any], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Sets what `states` returned. A callback or an attribute that is not in it stays as it is."""
    for one in callbacks:
        for name in getattr(one, "kept", ()):
            if name in saved.get(one.name, {}):
                setattr(one, name, copy.deepcopy(saved[one.name][name]))
