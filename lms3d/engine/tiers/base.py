"""The base class of a swap tier, which makes the ops of a swap-out and of a swap-in. The module of each tier draws these ops.

A new tier subclasses `Tier` in a module of its own, and gets a line in `lms3d.engine.tiers`. It must define `swap_out` and
`swap_in`; everything else has a default. `host` is the plainest example. From `lms3d.engine.tensorflow.surgery` it uses

    insertion   the context in which ops are added to a graph that is traced already, after given ops
    keep        marks an op that nobody reads, or TensorFlow would prune it
    needs       for a tier that moves data where TensorFlow cannot see it, as `disk` does: rewritten functions then hold the
                tier, ask it to `begin` and `check` around each call, and refuse calls that cannot work (under gradient tapes, or
                from other functions)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lms3d.engine.cost import Machine
from lms3d.engine.plan import SCOPE
from lms3d.errors import StorageError

if TYPE_CHECKING:
    import tensorflow as tf

_GATE = "/buffer"
OURS = "lms3d: "
"""The prefix of the native operations' error messages (`native/src/ops.cc`)."""


@dataclass(frozen=True, kw_only=True)
class TierSpeed:
    """A tier's part of `cost.Machine`, with the same names: bytes per second each way, and the cost of a transfer to the step."""

    swap_out_bytes_per_second: float = Machine.swap_out_bytes_per_second
    swap_in_bytes_per_second: float = Machine.swap_in_bytes_per_second
    swap_share: float = Machine.swap_share
    node_seconds: float = Machine.node_seconds


class Tier:
    """A place for swapped tensors. One is made for each engine, when it first needs it.

    directory: the folder that the user gave (`--swap-dir`), for tiers with files.
    """

    name: ClassVar[str]
    """The tier's name in `TIERS`."""
    in_stream_order: ClassVar[bool] = False
    """Whether copies go on beside the step after the op of the swap-out has ended, and memory changes hands in the order of the
    plan. The rewrite then holds every original, and adds control edges to the gates of swap-ins (`gate_name`)."""
    waits_on_device: ClassVar[bool] = False
    """Whether the device stops at a hold or an arrival until the copy has ended. The rewrite then lets go of originals when they
    are due back, at the latest, and lets swap-ins arrive just before their readers (`passes.stream`)."""
    pins_host_memory: ClassVar[bool] = False
    """Whether copies from a GPU go through TensorFlow's pinned memory, which has a limit of its own."""
    may_fail: ClassVar[bool] = False
    """Whether a step can end with an `error` of the tier's own, so that its update must be undone."""

    def __init__(self, directory: Path | None = None) -> None: ...

    @property
    def error(self) -> StorageError | None:
        """The tier's failure since the last `begin`, or None. TensorFlow itself passes on the text alone."""
        return None

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        """The op that copies `tensor` out. Its output 0 is the handle for `swap_in`."""
        raise NotImplementedError

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        """The tensor that came back, of the shape and type of `like`, fetched after the ops of `triggers`.

        mapped: it may be the very bytes that were swapped out, which the next step overwrites. If a separate op allocates the
        tensor, that op is called `gate_name(name)`, and waits for the triggers.
        """
        raise NotImplementedError

    def hold(self, tensor: tf.Tensor, out: tf.Operation, name: str, before: Sequence[tf.Operation]) -> tf.Operation:
        """In stream order: the op that keeps the original in memory until the ops of `before` and the copy of `out` have ended."""
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """The bytes that graphs which may run again hold on the tier."""
        return 0

    def take_counters(self) -> dict[str, float]:
        """Bytes and seconds of swapping since the last call, by the names of `COUNTERS`; empty if the tier cannot measure them.

        The seconds are those in which a link was busy: transfers that overlap count once, so bytes / seconds is its bandwidth.
        """
        return {}

    def begin(self) -> int:
        """Called before a step, and before its function runs. Forgets earlier failures; returns a token for `check`."""
        return 0

    def check(self, begun: int) -> None:
        """Called after a function. StorageError if the tier may have handed out bytes that it failed to keep.

        begun: the token that `begin` returned before this very function. Other functions may run at the same time in other threads.
        """

    def failed(self) -> None:
        """Called after a function that failed. Ends all copies that it started. Must not raise."""

    def discard(self, graph: tf.Graph) -> None:
        """Gives back the space of a graph that will not run again."""

    def close(self) -> None:
        """Gives back all space."""

    # -- before there is a tier

    @classmethod
    def beside(cls, device: str) -> type[Tier]:
        """The class that does this tier's work for a compute device such as "GPU:0"."""
        return cls

    @classmethod
    def prepare(cls, directory: Path | None) -> None:
        """Called before the first plan, even if that will swap nothing. InputError if the tier cannot work."""

    @classmethod
    def place(cls, directory: Path | None) -> str:
        """The name of the place that the tier's speed depends on besides the device."""
        return ""

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """The speed measured now, for a compute device such as "CPU:0"; the defaults of `cost.Machine` if a tier does not
        measure."""
        return TierSpeed()

    @classmethod
    def can_map(cls, device: str, directory: Path | None) -> bool:
        """Whether a step can read swapped tensors where they lie (`Machine.mapped`)."""
        return False


COUNTERS = ("swapped_out_bytes", "swapped_in_bytes", "swap_out_seconds", "swap_in_seconds")


def gate_name(swap_in: str) -> str:
    """The name of a swap-in's gate: the op that takes its memory, if that is not the op of the swap-in itself."""
    return f"{swap_in}{_GATE}"


def gate(graph: tf.Graph, op: tf.Operation) -> tf.Operation:
    """The op that a trigger of the inserted op `op` must hold back: its gate if it has one, or else `op` itself."""
    try:
        return graph.get_operation_by_name(gate_name(op.name))
    except KeyError:
        return op


def gates(graph: tf.Graph) -> list[tf.Operation]:
    """The gates of all swap-ins."""
    return [op for op in graph.get_operations() if op.name.startswith(f"{SCOPE}swap_in/") and op.name.endswith(_GATE)]


def best_seconds(work: Callable[[], object], repeats: int = 4) -> float:
    """The seconds of the fastest run: the time that the machine takes if nothing disturbs it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
