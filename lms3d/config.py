"""Every option of a training run as one frozen value, and its checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms3d.common import json_values
from lms3d.errors import InputError
from lms3d.ranks.messages import sendable

LONGEST_SIDE = 4096
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@sendable
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What `python -m lms3d.train` was asked to do. None: decided from the data or the device at the start."""

    task: str = "brats"
    """Name of what is learned, in `lms3d.tasks`. The defaults below are those of "brats"; `lms3d.tasks.chosen` puts in those
    of another task."""

    model: str = "isensee2017"
    """Name of the network in `models`."""

    data: Path | None = None
    """Folder of the data set; None uses the embedded phantom data."""

    labels: str | None = None
    """Name of the label schema; None takes that of the layout that is recognised."""

    targets: str = "labels"
    """What the output channels are: "labels" (disjoint) or "regions" (nested), see `data.brats.targets`."""

    resolution: int = 128
    """Side N of the cube (N, N, N, 4) or square (N, N, 3) that every sample is resized to; divisible by 16."""

    box: tuple[int, int, int] | None = None
    """Voxels of 1 mm around the brain's centre, in place of the cube: nothing is resized. Divisible by 16."""

    patch: int | None = None
    """Side of the cubes that are cut from the volume for training and, overlapping, for prediction; None takes it whole."""

    anti_alias: bool = True
    """Whether detail that the resolution cannot hold is removed before images are resized."""

    normalisation: str = "case"
    """Of intensities: "case" (z-scores inside each brain) or "global" (the case study's), see `data.brats.normalise`."""

    n4: bool = False
    """Whether bias fields of t1, t1ce and t2 are removed (N4) after the crop, before the resize; slow, done once."""

    split: Path | None = None
    """A split.json to use in place of a new random split."""

    validation_fraction: float = 0.2
    """Share of the cases kept for validation."""

    folds: int | None = None
    """Parts of equal size that the cases are divided into, of which one validates; None draws a share of them."""

    fold: int = 0
    """Which: 0 to `folds` - 1."""

    augment: bool = True
    """Whether training samples are turned by symmetries of the volume; images mirrored left to right."""

    symmetries: str = "all"
    """Which: "all" that keep the shape (48 of a cube), "flips" or "mirror", see `data.brats.symmetries`."""

    distort: tuple[str, ...] = ()
    """Names of what else is done to training samples, see `data.brats.distortions`."""

    batch_size: int = 1
    """Samples per step and rank."""

    validation_batch_size: int | None = None
    """Samples per validation step; None is `batch_size`. A larger one needs memory for the batches themselves."""

    epochs: int | None = None
    """Largest number of passes; None is 500, or what fits into a demonstration on the embedded data."""

    steps_per_epoch: int | None = None
    """Steps of an epoch; None passes over all training cases."""

    validation_steps: int | None = None
    """Validation batches after each epoch; None uses all validation cases."""

    loss: str = "dice"
    """Name of one of the task's losses."""

    deep_supervision: bool = False
    """Whether each deeper head of isensee2017 has a loss of its own, beside that of their sum."""

    learning_rate: float = 5e-4
    """Adam's at the start, for one rank; N ranks take N times as much."""

    warmup_epochs: int | None = None
    """Epochs over which the rate grows from that of one rank to that of all; None is 5. On one rank it does not grow."""

    gradient_compression: str = "none"
    """How gradients travel between ranks: "none", or "fp16" for half the bytes."""

    schedule: str = "plateau"
    """Of the learning rate: "plateau" lowers it when validation stalls, "cosine" lowers it to a hundredth over all epochs."""

    accumulate: int = 1
    """Steps whose gradients are averaged before the weights change once."""

    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is validated and kept as the best; None keeps the weights."""

    start_from: Path | None = None
    """A run of the same network and targets, of any resolution, whose best weights to start from."""

    stages: tuple[tuple[int, int | None], ...] = ()
    """(resolution, epochs) of runs before this one, each of which starts the next; see `lms3d.training.stages`."""

    weights: Path | None = None
    """A file of weights to start from; None starts from random ones."""

    patience: int = 50
    """Epochs without a better validation loss after which training ends."""

    lms: bool = True
    """Whether activations are swapped or recomputed as far as the memory limit asks."""

    memory_limit: int | None = None
    """Hard limit on device memory in bytes; None is what the device or the container has."""

    cudnn_workspace: int | None = None
    """Limit of cuDNN's workspace in bytes; None follows from the memory limit (`lms3d.device.workspace`). GPU only."""

    slabs: str = "auto"
    """Slabs that the tensors of the largest levels are cut into: "auto" (only where the limit asks for it), "off", or numbers by
    level such as "16/8". Runs from before there were slabs: "off"."""

    lms_compile: str = "off"
    """Whether LMS compiles chains of small operations of a step: "auto" (where that is measured to pay), or "off"."""

    swap_tier: str = "auto"
    """Where swapped tensors go: "host", "disk", or "auto" for host memory on a GPU and disk on a CPU."""

    swap_dir: Path | None = None
    """Folder for swap files; None is the system's temporary folder."""

    swapout_threshold: int | None = None
    """TFLMS: swap a tensor for consumers more than this many levels away; None plans automatically."""

    swapin_ahead: int | None = None
    """TFLMS: levels before its use at which a tensor comes back."""

    swapin_groupby: int | None = None
    """TFLMS: uses within this many levels share one swap-in."""

    sync_mode: int | None = None
    """TFLMS: 0 none, 1 wait for swap-outs, 2 for swap-ins, 3 for both."""

    serialization: tuple[int | str, ...] = ()
    """TFLMS: levels (or ranges "3:5") whose operations run one after the other."""

    serialization_by_size: float = 0.0
    """TFLMS: serialise each level with more inputs and outputs than this many GiB; 0 is off."""

    precision: str = "float32"
    """Keras dtype policy of the activations."""

    seed: int = 0
    """Decides the split, the initial weights, dropout, the order of cases and their augmentation."""

    def volume_shape(self, axes: int = 3) -> tuple[int, ...]:
        """Of every case, without channels: the box, or the cube or square."""
        return self.box or (self.resolution,) * axes

    def sample_shape(self, axes: int = 3) -> tuple[int, ...]:
        """Of what the network takes at once: a patch, or all."""
        return (self.patch,) * axes if self.patch else self.volume_shape(axes)

    def size_text(self, axes: int = 3) -> str:
        """ "192^3", "160x192x160" or "128^3 of 192^3": what a step works on."""
        whole = "x".join(map(str, self.box)) if self.box else f"{self.resolution}^{axes}"
        return f"{self.patch}^{axes} of {whole}" if self.patch else whole

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; paths as text."""
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainConfig:
        """The inverse of `to_json`, also of earlier versions; InputError for unknown names, ValueError for impossible values."""
        names = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - names):
            raise InputError(f"unknown options {', '.join(unknown)}; was the run made by another version of lms3d?")
        revived = {name: _revive(name, value) for name, value in (_BEFORE | values).items()}
        json_values.require_types(revived, cls)
        options = cls(**revived)
        if not all(
            1 <= side <= LONGEST_SIDE for side in (options.resolution, options.patch or 1, *(options.box or (1,)))
        ):
            raise ValueError(f"found {options.size_text()}; expected sides from 1 to {LONGEST_SIDE}")
        return options


# Options that earlier versions had not, as those versions acted.
_BEFORE = {"slabs": "off", "normalisation": "global", "anti_alias": False}

_FORMS = {
    "versions": dict,
    "command": list,
    "circumstances": dict,
    "data": dict,
    "normalisation": dict,
    "labels": dict,
    "earlier_sessions": list,
}

# What may differ when a run is resumed: how long, where and how it computes; of what it started from see `require_same_start`.
FREE_ON_RESUME = frozenset(
    {"data", "epochs", "lms", "memory_limit", "cudnn_workspace", "swap_tier", "swap_dir", "swapout_threshold", "swapin_ahead",
     "swapin_groupby", "sync_mode", "serialization", "serialization_by_size", "gradient_compression", "weights", "start_from"}
)  # fmt: skip


def resumed(stored: TrainConfig, given: dict[str, Any], run_dir: Path) -> TrainConfig:
    """The stored options with those given now; InputError where they contradict each other."""
    for name, value in given.items():
        before = getattr(stored, name)
        if name not in FREE_ON_RESUME and value != before:
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"{option} {value} differs from the run in {run_dir}, which has {before}; "
                f"leave {option} out to resume it, or start another run with another --output"
            )
    return dataclasses.replace(stored, **given)


def require_same_start(stored: TrainConfig, given: dict[str, Any], run_dir: Path) -> None:
    """InputError where a run with a checkpoint is asked to start from other weights, which nobody would read."""
    for name in ("weights", "start_from"):
        if name in given and given[name] != getattr(stored, name) and not stored.stages:
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"{option} {given[name]}: the run in {run_dir} goes on from its own checkpoint; leave {option} out, or start "
                "another run with another --output"
            )


def load(run_dir: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The options of a run, and the whole content of its config.json."""
    path = run_dir / "config.json"
    try:
        content = json_values.parse(path.read_text(encoding="utf-8"))
        options = TrainConfig.from_json(content["options"])
        _require_forms(content)
        return options, content
    except FileNotFoundError:
        raise InputError(f"{run_dir} is not a run folder: it has no config.json") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give the folder of a run") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it or start another run") from None


def fingerprint(content: Mapping[str, Any], run_dir: Path) -> str:
    """Of the data that a run was trained on, by its config.json."""
    found = content.get("data", {}).get("fingerprint")
    if not isinstance(found, str):
        raise InputError(
            f"{run_dir / 'config.json'} is damaged (found no fingerprint of the data); restore it or start another run"
        )
    return found


def _require_forms(content: dict[str, Any]) -> None:
    """ValueError where what stands beside the options has another form than every version has written."""
    for name, kind in _FORMS.items():
        if name in content and not isinstance(content[name], kind):
            raise ValueError(
                f"found {name} {str(content[name])[:60]!r}, expected {'an object' if kind is dict else 'a list'}"
            )


def _revive(name: str, value: Any) -> Any:
    if name in ("data", "split", "swap_dir", "weights", "start_from") and value is not None:
        return Path(value)
    if name == "stages":
        return tuple((resolution, epochs) for resolution, epochs in value)
    return tuple(value) if name in ("serialization", "box", "distort") and value is not None else value
