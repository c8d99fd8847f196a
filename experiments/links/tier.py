"""A swap tier with the link of another machine: copies to this process's memory and back, each way through one `Channel`.

    t -> lms/swap_out/t/start ..submits.. [channel] ..rings.. lms/swap_out/t -> lms/swap_in/t/k/start ... -> lms/swap_in/t/k -> z
                                                                  lms/swap_in/t/k/buffer -/   (the gate: an empty tensor)

The `start` op hands a view of the tensor's own buffer to the channel and returns; the next op takes a token from a TensorFlow
queue, which the channel puts there when the transfer has ended. Taking from a queue holds no thread: transfers may wait by the
hundred (LINK-4). Meanwhile the view holds the memory of the tensor, as a copying device does.

For experiments only: swapped tensors lie in this process's memory, and the copies cost time of the processor that computes.
"""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow as tf

from experiments.links.calendar import Calendar, OwnCalendar, SharedCalendar
from experiments.links.channel import Channel
from experiments.links.copying import copy_seconds_per_byte
from experiments.links.counters import COPY_SECONDS
from experiments.links.link import Link
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tiers import TIERS
from lms3d.swap.tiers.base import COUNTERS, Tier, TierSpeed, gate_name
from lms3d.swap.tuning import SMALL_COPIES

_NUMBERS = itertools.count()
_LINE = 64  # bytes that a processor's caches load at once


class LinkTier(Tier):
    """Of one link: `register` makes a subclass for each. total: what all tiers of the class have moved so far."""

    memory_in_plan_order = True
    measures_transfers = True
    link: ClassVar[Link]
    costs_nothing: ClassVar[bool] = False
    """For predictions alone: as if the copies took no time of this processor."""
    total: ClassVar[dict[str, float]]

    def __init__(self, directory: Path | None = None) -> None:
        out, back = (_calendar(self.link.bus, way) for way in ("out", "back"))
        latency = self.link.latency_seconds
        self._out = Channel(self.link.out_bytes_per_second, latency, out)
        self._back = Channel(self.link.back_bytes_per_second, latency, back)
        self._ends: weakref.WeakKeyDictionary[tf.Graph, dict[str, _End]] = weakref.WeakKeyDictionary()
        self._settled = 0  # transfers of functions that ended as they should
        self._finalizer = weakref.finalize(self, _close, self._out, self._back)

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        surgery.needs(tensor.graph, self)
        size = tensor.shape.num_elements() * tensor.dtype.size
        kept = np.full(size, 1, np.uint8)  # its pages are there before the first step: they would make it late
        return self._transfer(name, _End(self._out, kept), [tensor]).op

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        graph = handle.graph
        kept = self._ends[graph][handle.op.name].kept
        with surgery.insertion(graph, "CPU:0", triggers):
            empty = tf.raw_ops.Empty(shape=like.shape.as_list(), dtype=like.dtype, name=gate_name(name))
        done = self._transfer(f"{name}/done", _End(self._back, kept, back=True), [empty, handle])
        with surgery.insertion(graph, "CPU:0", [done.op]):
            back = tf.raw_ops.Identity(input=empty, name=name)
        for op in (empty.op, back.op):
            surgery.keep(op)
        return back

    def _transfer(self, name: str, end: _End, inputs: list[tf.Tensor]) -> tf.Tensor:
        """An op called `name` that waits for the transfer of the first of `inputs`."""
        graph = inputs[0].graph
        self._ends.setdefault(graph, {})[name] = end
        found = weakref.ref(end)  # TensorFlow keeps what a graph calls for ever: that must not hold the bytes

        def start(array: np.ndarray, *_: np.ndarray) -> np.bool_:
            known = found()
            assert known is not None, "the graph was discarded"
            known.submit(array.reshape(-1).view(np.uint8))
            return np.bool_(True)

        with surgery.insertion(graph, "CPU:0"):
            started = tf.numpy_function(start, inputs, tf.bool, name=f"{name}/start")
        done = end.heard(graph, name, started)
        for op in (started.op, done.op):
            surgery.keep(op)
        return done

    def take_counters(self) -> dict[str, float]:
        out, back = self._out.take(), self._back.take()
        counters = dict(zip(COUNTERS, (out[0], back[0], out[1], back[1]), strict=True)) | {
            COPY_SECONDS: out[2] + back[2]
        }
        for name, value in counters.items():
            self.total[name] = self.total.get(name, 0.0) + value
        return counters

    def begin(self) -> int:
        """After a function that failed: its transfers end, and nobody takes their tokens for new ones."""
        if self._submitted != self._settled:
            for channel in (self._out, self._back):
                channel.wait()
            for end in itertools.chain.from_iterable(known.values() for known in self._ends.values()):
                end.silence()
            self._settled = self._submitted
        return 0

    @property
    def _submitted(self) -> int:
        return self._out.submitted + self._back.submitted

    def check(self, begun: int) -> None:
        self._settled = self._submitted
        for channel in (self._out, self._back):
            if channel.error is not None:
                raise RuntimeError("a transfer over the emulated link failed") from channel.error

    def discard(self, graph: tf.Graph) -> None:
        self._ends.pop(graph, None)

    def close(self) -> None:
        self._finalizer()

    @classmethod
    def place(cls, directory: Path | None) -> str:
        return f"{cls.link}{' modelled' if cls.costs_nothing else ''}"

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """The stated rates. A second of transfer takes from the step what its copy takes of a processor: on few cores the
        others wait for the part of an op that is late."""
        rates = cls.link.out_bytes_per_second, cls.link.back_bytes_per_second
        copying = 0.0 if cls.costs_nothing else copy_seconds_per_byte() * sum(rates) / 2
        return TierSpeed(
            swap_out_bytes_per_second=rates[0],
            swap_in_bytes_per_second=rates[1],
            swap_share=copying,
            node_seconds=0.0 if cls.costs_nothing else _node_seconds(),
        )


def register(link: Link, *, costs_nothing: bool = False) -> type[LinkTier]:
    """The tier of a link, under a name that `LMS(tier=...)` knows in this process."""
    name = f"link {link}{' modelled' if costs_nothing else ''}"
    if name in TIERS:
        found = TIERS[name]
        assert issubclass(found, LinkTier), "the names of links are theirs alone"
        return found
    made = type(
        "RegisteredLinkTier", (LinkTier,), {"name": name, "link": link, "costs_nothing": costs_nothing, "total": {}}
    )
    return TIERS.register(name)(made)


class _End:
    """The far end of one transfer: the bytes, and a TensorFlow queue of tokens, which an op can wait for without a thread."""

    def __init__(self, channel: Channel, kept: np.ndarray, *, back: bool = False) -> None:
        self.channel, self.kept, self.back = channel, kept, back
        with tf.init_scope(), tf.device("CPU:0"):
            self._queue = tf.queue.FIFOQueue(2, [tf.bool], [()], shared_name=f"emulated-link-{next(_NUMBERS)}")

    def submit(self, data: np.ndarray) -> None:
        """data: the bytes of the tensor, where TensorFlow has them."""
        to, source = (data, self.kept) if self.back else (self.kept, data)
        self.channel.submit(to, source, self.ring)

    def ring(self) -> None:
        with tf.device("CPU:0"):
            self._queue.enqueue(_token())

    def silence(self) -> None:
        while int(self._queue.size()):
            self._queue.dequeue()

    def heard(self, graph: tf.Graph, name: str, after: tf.Tensor) -> tf.Tensor:
        """The op, called `name`, that takes a token once `after` is there."""
        queue = surgery.capture_elsewhere(graph, self._queue.queue_ref, f"{name}/queue")
        with surgery.insertion(graph, "CPU:0", [after.op]):
            (done,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.bool], name=name)
        done.set_shape(())
        return done


@functools.cache
def _token() -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(True)


def _calendar(bus: Path | None, way: str) -> Calendar:
    return OwnCalendar() if bus is None else SharedCalendar(bus / way)


def _close(*channels: Channel) -> None:
    for channel in channels:
        channel.close()


@functools.cache
def _node_seconds() -> float:
    """Processor seconds of one transfer of a few bytes, over a link that is as fast as can be: what the calls cost."""
    fast = Link(out_bytes_per_second=1e15, back_bytes_per_second=1e15)
    tier = type("FastLinkTier", (LinkTier,), {"name": "fast", "link": fast, "total": {}})()

    @tf.function(autograph=False)
    def there_and_back(tensor: tf.Tensor) -> tf.Tensor:
        for number in range(SMALL_COPIES):
            tensor = tensor + 1.0
            handle = tier.swap_out(tensor, f"probe/swap_out/{number}").outputs[0]
            tensor = tier.swap_in(handle, tensor, f"probe/swap_in/{number}", ())
        return tensor

    start, seconds = tf.ones((_LINE,)), []
    there_and_back(start)  # traces
    for _ in range(4):
        began = time.process_time()
        there_and_back(start).numpy()
        seconds.append(time.process_time() - began)
    tier.close()
    return min(seconds) / (2 * SMALL_COPIES)
