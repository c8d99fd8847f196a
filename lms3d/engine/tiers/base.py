"""What a swap tier is: it makes the ops of a swap-out and of a swap-in. Each tier draws its own.

A new tier subclasses `Tier` in a module of its own, and gets a line in `lms3d.engine.tiers`. It must define `swap_out` and
`swap_in`; all else has a default. `host` is the plainest example. From `lms3d.engine.tensorflow.surgery` it uses

    insertion   the context in which ops are added to a graph that is traced already, after given ops
    keep        marks an op that nothing reads, or TensorFlow would prune it
    needs       for a tier that moves data where TensorFlow cannot see it, as `disk` does: rewritten functions then hold the
                tier, ask it to `begin` and `check` around each call, and refuse what cannot work (gradient tapes, calls from
                other functions)
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
"""Before what the native operations say of a failure (`native/src/ops.cc`)."""


@dataclass(frozen=True, kw_only=True)
class TierSpeed:
    """A tier's part of `cost.Machine`, in whose words: bytes per second each way, and what a transfer takes from the step."""

    swap_out_bytes_per_second: float = Machine.swap_out_bytes_per_second
    swap_in_bytes_per_second: float = Machine.swap_in_bytes_per_second
    swap_share: float = Machine.swap_share
    node_seconds: float = Machine.node_seconds


class Tier:
    """A place for swapped tensors. One is made for each engine, when it first needs it.

    directory: the folder that the user gave (`--swap-dir`), for tiers with files.
    """

    name: ClassVar[str]
    """As in `TIERS`."""
    in_stream_order: ClassVar[bool] = False
    """Whether copies go on beside the step after the op of the swap-out has ended, and swapped memory changes hands in the order of
    the plan: the rewrite then holds every original, and adds control edges to the gates of swap-ins (`gate_name`)."""
    waits_on_device: ClassVar[bool] = False
    """Whether a hold or an arrival stops the device for the copy, from where the host enqueues it: the rewrite then holds originals
    no longer than until they are due back, and lets swap-ins arrive just before their readers (`stream`)."""
    pins_host_memory: ClassVar[bool] = False
    """Whether copies from a GPU go through TensorFlow's pinned memory, which has a limit of its own."""
    may_fail: ClassVar[bool] = False
    """Whether a step can end with an `error` of the tier's own, so that its update must be undone."""

    def __init__(self, directory: Path | None = None) -> None: ...

    @property
    def error(self) -> StorageError | None:
        """What the tier failed with since the last `begin`; TensorFlow passes on the text alone."""
        return None

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        """The op that copies `tensor` out; its output 0 is the handle that `swap_in` wants."""
        raise NotImplementedError

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        """The tensor that came back: same shape and type as `like`, fetched after the ops of `triggers`.

        mapped: it may be the very bytes that were swapped out, which the next step overwrites. Where the memory of the tensor
        is taken by another op than the one called `name`, that one is called `gate_name(name)`, and waits for the triggers.
        """
        raise NotImplementedError

    def hold(self, tensor: tf.Tensor, out: tf.Operation, name: str, before: Sequence[tf.Operation]) -> tf.Operation:
        """In stream order: the op that keeps the original in memory until the ops of `before` and the copy of `out` have ended."""
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """Of the tier's place, by graphs that may run again."""
        return 0

    def take_counters(self) -> dict[str, float]:
        """Bytes and seconds of swapping since the last call, as `COUNTERS`; empty where the tier cannot measure them.

        Seconds are those in which a link was busy: transfers that overlap count once, so bytes / seconds is its bandwidth.
        """
        return {}

    def begin(self) -> int:
        """Before a step, and before its function runs: earlier failures do not explain what fails now. For `check`."""
        return 0

    def check(self, begun: int) -> None:
        """After a function: StorageError where the tier may have handed out bytes that it failed to keep.

        begun: what `begin` returned before this very function; others may run at the same time, in threads of their own.
        """

    def failed(self) -> None:
        """After a function that did not reach its end: nothing that it started goes on. Must not raise."""

    def discard(self, graph: tf.Graph) -> None:
        """Give back the space of a graph that will not run again."""

    def close(self) -> None:
        """Give everything back."""

    # -- before there is a tier

    @classmethod
    def beside(cls, device: str) -> type[Tier]:
        """The class that does this tier's work for a compute device such as "GPU:0"."""
        return cls

    @classmethod
    def prepare(cls, directory: Path | None) -> None:
        """Before the first plan, even if that will swap nothing: InputError where the tier cannot work."""

    @classmethod
    def place(cls, directory: Path | None) -> str:
        """What the tier's speed depends on besides the device."""
        return ""

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """Measured now, for a compute device such as "CPU:0"; the defaults of `cost.Machine` where a tier does not measure."""
        return TierSpeed()

    @classmethod
    def can_map(cls, device: str, directory: Path | None) -> bool:
        """Whether a step can read what was swapped out where it lies (`Machine.mapped`)."""
        return False


COUNTERS = ("swapped_out_bytes", "swapped_in_bytes", "swap_out_seconds", "swap_in_seconds")


def gate_name(swap_in: str) -> str:
    """The gate of the swap-in of this name: the op that takes its memory, where that is not the op of the swap-in itself."""
    return f"{swap_in}{_GATE}"


def gate(graph: tf.Graph, op: tf.Operation) -> tf.Operation:
    """The op that a trigger of the inserted op `op` must hold back: its gate, else itself."""
    try:
        return graph.get_operation_by_name(gate_name(op.name))
    except KeyError:
        return op


def gates(graph: tf.Graph) -> list[tf.Operation]:
    """All gates of swap-ins."""
    return [op for op in graph.get_operations() if op.name.startswith(f"{SCOPE}swap_in/") and op.name.endswith(_GATE)]


def best_seconds(work: Callable[[], object], repeats: int = 4) -> float:
    """The fastest of some runs: what the machine can do when nothing disturbs it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
