"""Copies beside the step, in stream order: the four operations of `lms3d.engine.native` over one lane.

    t -> lms/swap_out/t  ->  lms/swap_in/t/k/buffer -> lms/swap_in/t/k -> z
    t -> lms/hold/t          (fetch, the gate)         (arrive)

STREAM-1  Memory is taken and given back in the order in which the host enqueues the step. A swap-in takes its memory at the fetch.
          An original gives its memory back at the hold, which stands where the plan expects it (`SwapOut.until`).
STREAM-2  An arrival stands just before the first reader: the device waits there for the copy, and not earlier.
STREAM-3  Nothing waits on the host. On a processor an operation is complete when it returns, so hold and arrive last until the copy
          has ended. They occupy no thread, unless a lane of files makes the copy there. An arrival may come early on a processor
          (`Tier.waits_on_device`).

`passes.rewrite` draws these edges, and checks them. The default planner's plans and the allocator's replay follow this order. The
simulator (`simulate`) knows no hold: it frees an original when its copy is complete (SIM-4), where TFLMS's plans have their holds
(TFLMS-9).
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from lms3d.engine.native.lanes import Counted, Lane
from lms3d.engine.native.library import library, missing
from lms3d.engine.tensorflow import surgery
from lms3d.engine.tiers.base import COUNTERS, Tier, TierSpeed, gate_name
from lms3d.errors import StorageError

log = logging.getLogger("lms3d")


class StreamTier(Tier):
    """A subclass makes the lane. device: the compute device, for tensors whose ops name none."""

    in_stream_order = True
    waits_on_device = True
    device = "CPU:0"

    def __init__(self, directory: str | Path | None = None, lane: Lane | None = None) -> None:
        self.lane = lane or self.make_lane()
        self._slots: weakref.WeakKeyDictionary[tf.Graph, dict[str, int]] = weakref.WeakKeyDictionary()
        self._sizes: weakref.WeakKeyDictionary[tf.Graph, dict[int, int]] = weakref.WeakKeyDictionary()
        self._copies: weakref.WeakKeyDictionary[tf.Graph, dict[int, int]] = weakref.WeakKeyDictionary()

    @classmethod
    def make_lane(cls) -> Lane:
        raise NotImplementedError

    @classmethod
    def place(cls, directory: Path | None) -> str:
        return "no swap engine " if missing() else ""

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """The measured speed, or the defaults without a library: a step that swaps nothing can still be planned and run."""
        if why := missing():
            log.warning("lms: nothing can be swapped: %s", why)
            return TierSpeed()
        return cls.measured(device, directory)

    @classmethod
    def measured(cls, device: str, directory: Path | None) -> TierSpeed:
        """The measured speed; there is a library."""
        return TierSpeed()

    def on(self, tensor: tf.Tensor) -> str:
        """The device of the ops that move `tensor`."""
        return tensor.device or self.device

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        surgery.needs(tensor.graph, self)
        size = tensor.shape.num_elements() * tensor.dtype.size
        slot = self.lane.reserve(size)
        self._slots.setdefault(tensor.graph, {})[name] = slot
        self._sizes.setdefault(tensor.graph, {})[slot] = size
        with surgery.insertion(tensor.graph, self.on(tensor)):
            handle = library().operations.lms_swap_out(x=tensor, lane=self.lane.number, slot=slot, name=name)
        surgery.keep(handle.op)
        return handle.op

    def hold(self, tensor: tf.Tensor, out: tf.Operation, name: str, before: Sequence[tf.Operation]) -> tf.Operation:
        slot = self._slots[tensor.graph][out.name]
        with surgery.insertion(tensor.graph, self.on(tensor), [out, *before]):
            hold = library().operations.lms_hold(x=tensor, lane=self.lane.number, slot=slot, name=name)
        surgery.keep(hold)
        return hold

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        graph, operations = handle.graph, library().operations
        where = self.new_copy(handle)
        with surgery.insertion(graph, self.on(like), triggers):
            fetched = operations.lms_fetch(handle=handle, T=like.dtype, shape=like.shape, name=gate_name(name), **where)
        with surgery.insertion(graph, self.on(like)):
            back = operations.lms_arrive(x=fetched, name=name, **where)
        for op in (fetched.op, back.op):
            surgery.keep(op)
        return back

    def new_copy(self, handle: tf.Tensor) -> dict[str, int]:
        """The attributes of the ops of one more swap-in of the tensor behind `handle`."""
        slot, numbers = self._slots[handle.graph][handle.op.name], self._copies.setdefault(handle.graph, {})
        numbers[slot] = numbers.get(slot, -1) + 1
        return {"lane": self.lane.number, "slot": slot, "copy": numbers[slot]}

    @property
    def held_bytes(self) -> int:
        return sum(sum(sizes.values()) for sizes in self._sizes.values())

    # -- around each call

    def begin(self) -> int:
        if self.lane.closed:
            raise StorageError(
                "the swap tier of this function is closed, and what it swaps has no place: rewrite the function again"
            )
        return 0

    def failed(self) -> None:
        """Ends the copies, which give back the device's memory: the next step may need it, and writes to the same places."""
        with contextlib.suppress(StorageError):  # the device is lost; the error of the step says more
            self.lane.settle()

    def take_counters(self) -> dict[str, float]:
        return as_counters(self.lane.take())

    def discard(self, graph: tf.Graph) -> None:
        self._sizes.pop(graph, None)
        for slot in self._slots.pop(graph, {}).values():
            self.lane.drop(slot)

    def close(self) -> None:
        self.lane.close()


def as_counters(counted: Counted) -> dict[str, float]:
    """The figures of a lane, by the names of `COUNTERS`."""
    figures = (counted.out_bytes, counted.in_bytes, counted.out_seconds, counted.in_seconds)
    return dict(zip(COUNTERS, figures, strict=True))
