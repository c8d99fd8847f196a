"""The options of a training run as one frozen value. A task adds its own by a subclass.

    TrainConfig                 the options that every task has
    StagedConfig                adds the options of a task whose runs may start from each other
    lms3d/tasks/*/options.py    adds the options of one task

config.json holds all options of a run side by side, in whichever class they are declared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from lms3d import cli
from lms3d.cli import LONGEST_SIDE
from lms3d.common import json_values
from lms3d.errors import InputError
from lms3d.ranks.messages import sendable

T = TypeVar("T", bound="TrainConfig")
S = TypeVar("S", bound="StagedConfig")
_SAME = object()


@dataclass(frozen=True, kw_only=True)
class Option:
    """How the command line shows one of a task's own options."""

    arguments: Mapping[str, Any]
    """The keyword arguments of `argparse.ArgumentParser.add_argument`."""
    predicts: bool
    """Whether a prediction depends on it: then a package keeps it (`lms3d.tasks.packages`)."""
    planned: bool
    """Whether the network, its input or its loss depends on it: then `lms3d.plan` has it, too."""

    @property
    def possible(self) -> tuple[Any, ...] | None:
        """The values to choose from; None: the type of the field decides."""
        return self.arguments.get("choices")


def option(
    default: Any, help: str, *, before: Any = _SAME, predicts: bool = False, planned: bool = False, **arguments: Any
) -> Any:  # fmt: skip
    """A field of a task's options: `name: int = option(3, "...", type=cli.whole(1), metavar="N")` is `--name N`, too.

    help, arguments: see `argparse.ArgumentParser.add_argument`. before: the value in runs that are older than the option; by
    default it is the value in new runs. predicts, planned: see `Option`.
    """
    shown = Option(arguments={**arguments, "help": help}, predicts=predicts, planned=planned)
    return field(default=default, metadata={"option": shown} | ({} if before is _SAME else {"before": before}))


def flag(name: str) -> str:
    """The option of a field: "batch_size" -> "--batch-size"."""
    return "--" + name.replace("_", "-")


@sendable
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of `python -m lms3d.train`. None: the data or the device decides at the start.

    These are the options that every task has. A task's own class adds its options, each made by `option`, and gives this
    class's fields its own defaults.
    """

    summary: ClassVar[str]
    """What the task learns, for `--help`: "tumours in brain scans"."""
    models: ClassVar[tuple[str, ...]]
    """The networks of `models` that the task trains."""
    losses: ClassVar[tuple[str, ...]]
    """The names of the task's losses."""
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of options that answer the same question: a command takes one of them."""
    starts: ClassVar[tuple[str, ...]] = ("weights",)
    """The options that say which weights a run starts from."""
    named_by: ClassVar[tuple[str, ...]] = ("task", "model", "resolution")
    """The options that `folder_name` shows."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        sendable(cls)  # rank 0 sends the options of a run to the other ranks

    task: str
    """The name of what is learned, in `lms3d.tasks`."""

    model: str
    """The name of the network in `models`."""

    data: Path | None = None
    """The folder of the data set; None uses the embedded phantom data."""

    resolution: int = 128
    """The side N of the cube (N, N, N, 4) or square (N, N, 3) to which every sample is resized; divisible by 16."""

    augment: bool = True
    """Whether training samples are turned by random symmetries: volumes by those of a box, images left to right."""

    batch_size: int = 1
    """The samples per step and rank."""

    validation_batch_size: int | None = None
    """The samples per validation step; None is `batch_size`. A larger number needs memory for the batches themselves."""

    epochs: int | None = None
    """The largest number of passes; None is 500, or what fits into a demonstration on the embedded data."""

    steps_per_epoch: int | None = None
    """The steps of an epoch; None passes over all training cases."""

    validation_steps: int | None = None
    """The validation batches after each epoch; None uses all validation cases."""

    loss: str
    """The name of one of the task's losses."""

    learning_rate: float = 5e-4
    """Adam's learning rate at the start, for one rank; N ranks take N times as much."""

    warmup_epochs: int | None = None
    """The epochs over which the rate grows from the rate of one rank to that of all; None is 5. On one rank it does not grow."""

    gradient_compression: str = "none"
    """How gradients travel between ranks: "none", or "fp16" for half the bytes."""

    schedule: str = "plateau"
    """How the learning rate falls: "plateau" lowers it when validation stalls, "cosine" takes it to a hundredth over all epochs."""

    accumulate: int = 1
    """The number of steps whose gradients are averaged before the weights change once."""

    ema: float | None = None
    """The decay of a moving average of the weights, which is validated and kept as the best; less at first (`training.adam`). None
    validates the weights."""

    weights: Path | None = None
    """A file of weights to start from; None starts from random weights."""

    patience: int = 50
    """Training ends after this many epochs without a better validation loss."""

    lms: bool = True
    """Whether activations are swapped or recomputed as far as the memory limit requires."""

    memory_limit: int | None = None
    """The hard limit on device memory in bytes; None is what the device or the container has."""

    cudnn_workspace: int | None = None
    """The limit on cuDNN's workspace in bytes; None follows from the memory limit (`lms3d.device.workspace`). GPU only."""

    slabs: str = field(default="auto", metadata={"before": "off"})
    """The slabs into which tensors of the largest levels are cut: "auto" (only if the limit requires it), "off", or numbers by
    level such as "16/8"."""

    lms_compile: str = "off"
    """Whether LMS compiles chains of small operations: "auto" (those for which a measurement shows that it pays), or "off"."""

    swap_tier: str = "auto"
    """Where swapped tensors go: "host", "disk", or "auto" for host memory on a GPU and disk on a CPU."""

    swap_dir: Path | None = None
    """The folder for swap files; None is the system's temporary folder."""

    swapout_threshold: int | None = None
    """TFLMS: swap a tensor for consumers that are more than this many levels away; None plans automatically."""

    swapin_ahead: int | None = None
    """TFLMS: a tensor comes back this many levels before its use."""

    swapin_groupby: int | None = None
    """TFLMS: uses within this many levels share one swap-in."""

    sync_mode: int | None = None
    """TFLMS: 0 none, 1 wait for swap-outs, 2 for swap-ins, 3 for both."""

    serialization: tuple[int | str, ...] = ()
    """TFLMS: levels (or ranges "3:5") whose operations run one after the other."""

    serialization_by_size: float = 0.0
    """TFLMS: serialise each level with more inputs and outputs than this many GiB; 0 is off."""

    precision: str = "float32"
    """The Keras dtype policy of the activations."""

    seed: int = 0
    """The seed of the split, the initial weights, dropout, the order of cases and their augmentation."""

    tracker: tuple[str, ...] = ("tensorboard",)
    """Where the numbers of each epoch go beside history.csv: names in `lms3d.training.trackers.TRACKERS`."""

    def volume_shape(self, axes: int = 3) -> tuple[int, ...]:
        """The shape of every case, without channels."""
        return (self.resolution,) * axes

    def sample_shape(self, axes: int = 3) -> tuple[int, ...]:
        """The shape of what the network takes at once, without channels."""
        return self.volume_shape(axes)

    def size_text(self, axes: int = 3) -> str:
        """ "192^3": what a step works on."""
        return f"{self.resolution}^{axes}"

    def sides(self) -> dict[str, tuple[int, ...]]:
        """Option -> the sides that it gives to cases and samples, in voxels or pixels."""
        return {"resolution": (self.resolution,)}

    def folder_name(self) -> str:
        """The name of a new run's folder."""
        return f"{self.model}-{self.resolution}"

    def network_arguments(self) -> dict[str, Any]:
        """What `models.build` is given for training besides a name, a shape and outputs."""
        return {}

    def without_start(self: T) -> T:
        """The same, from random weights."""
        none: dict[str, Any] = dict.fromkeys(self.starts)
        return replace(self, **none)

    def with_start_of(self: T, other: T) -> T:
        """The same, from the weights that another run starts from."""
        start: dict[str, Any] = {name: getattr(other, name) for name in self.starts}
        return replace(self, **start)

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all options."""
        return frozenset(one.name for one in dataclasses.fields(cls))

    @classmethod
    def own(cls) -> dict[str, Option]:
        """The options that not every task has, by name."""
        return {one.name: one.metadata["option"] for one in dataclasses.fields(cls) if "option" in one.metadata}

    @classmethod
    def require_own(cls, given: Mapping[str, Any], task: str) -> None:
        """InputError for an option of other tasks, and for two options that exclude each other."""
        for name in given:
            if name not in cls.names():
                raise InputError(
                    f"{flag(name)} is not for --task {task}, where it is fixed or means nothing; leave {flag(name)} out"
                )
        for one, other in cls.exclusive:
            if one in given and other in given:
                raise InputError(f"{flag(other)}: not allowed with argument {flag(one)}; leave one of them out")

    def check(self, given: Mapping[str, Any]) -> None:
        """InputError if the options contradict each other. given: those that the user wrote, by name."""
        for name, value, possible in (("model", self.model, self.models), ("loss", self.loss, self.losses)):
            if value not in possible:
                raise InputError(
                    f"--{name} {value} is not for --task {self.task}; expected one of {', '.join(possible)}"
                )

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; paths as text."""
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    def without_paths(self) -> dict[str, Any]:
        """Those of `to_json` that are given and no paths, which may name patients; for trackers."""
        given = {name: value for name, value in self.to_json().items() if value is not None and name != "tracker"}
        return {name: value for name, value in given.items() if not isinstance(getattr(self, name), Path)}

    @classmethod
    def from_json(cls: type[T], values: dict[str, Any]) -> T:
        """The inverse of `to_json`, also for files of earlier versions. InputError for unknown names, ValueError for impossible
        values."""
        if unknown := sorted(set(values) - cls.names()):
            raise InputError(f"unknown options {', '.join(unknown)}; was the run made by another version of lms3d?")
        older = {one.name: one.metadata["before"] for one in dataclasses.fields(cls) if "before" in one.metadata}
        hints = get_type_hints(cls)
        revived = {name: _revive(hints[name], value) for name, value in (older | values).items()}
        json_values.require_types(revived, cls)
        options = cls(**revived)
        if not all(1 <= side <= LONGEST_SIDE for sides in options.sides().values() for side in sides):
            raise ValueError(f"found {options.size_text()}; expected sides from 1 to {LONGEST_SIDE}")
        return options


def _revive(hint: Any, value: Any) -> Any:
    """A JSON value in the type of its field: text becomes a path, a list becomes a tuple."""
    kinds = get_args(hint) if get_origin(hint) is not tuple else (hint,)
    if Path in kinds and value is not None:
        return Path(value)
    if isinstance(value, list) and any(get_origin(kind) is tuple for kind in kinds):
        return tuple(tuple(part) if isinstance(part, list) else part for part in value)
    return value


@dataclass(frozen=True, kw_only=True)
class StagedConfig(TrainConfig):
    """The options of a task whose runs may start from each other, and so train at lower resolutions first."""

    start_from: Path | None = option(
        None, "start from the best weights of another run or of a package, of any resolution; with other channels or labels from "
        "those that fit (default: random weights)", type=cli.path, metavar="RUN",
    )  # fmt: skip

    stages: tuple[tuple[int, int | None], ...] = option(
        (), "train at lower resolutions first, each stage starting from the one before: RESOLUTION:EPOCHS,.. such as 64:20,96:10",
        type=cli.checked(cli.stages, "stages"), metavar="N:E,..",
    )  # fmt: skip
    """(resolution, epochs) of runs before this one, each of which starts the next; see `lms3d.training.stages`."""

    exclusive: ClassVar[tuple[tuple[str, str], ...]] = (("start_from", "weights"),)
    starts: ClassVar[tuple[str, ...]] = ("weights", "start_from")

    def starting_from(self: S, run_dir: Path) -> S:
        """The same, from the best weights of another run."""
        return replace(self, start_from=run_dir, weights=None)

    def at_stage(self: S, resolution: int, epochs: int | None) -> S:
        """The options of a stage: the same task on whole cubes of this resolution."""
        return replace(self, resolution=resolution, epochs=epochs, stages=())

    def check(self, given: Mapping[str, Any]) -> None:
        smallest = min(self.volume_shape())
        if self.stages and self.stages[-1][0] >= smallest:
            last = self.stages[-1][0]
            raise InputError(
                f"--stages: the last is {last}^3, and the run itself {self.size_text()}; expected lower ones"
            )
        start = self.start_from
        if start and not start.is_file() and not (start / "best.keras").is_file():
            raise InputError(
                f"--start-from {start}: found no best.keras there; expected the folder of a run that has finished an epoch, or a "
                "package"
            )
        super().check(given)
