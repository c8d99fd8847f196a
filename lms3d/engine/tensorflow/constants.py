"""What TensorFlow computes once and keeps: the ops of a function that follow from constants alone. Reads only.

The rules are the runtime's (`constant_folding.cc`, `optimizer_cse.cc`); no option of a function turns them off.

CONST-1  Before a function runs for the first time, TensorFlow computes the ops that follow from constants alone, such as the
         zeros of a gradient. Their results become constants if other ops read them, or the function returns them. Their memory
         stays taken until the function is forgotten, and the ops never run. Random numbers are no constants, whatever the seed.
CONST-2  A call, a branch and the body of a loop become a part of the step, each with constants of its own.
CONST-3  A result of more than 10 MiB becomes no constant. Its op runs in each step, and so do ops whose results only it reads.
CONST-4  Constants of one function that are computed in the same way, and wait for the same ops, are one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import tensorflow as tf

from lms3d.engine.ir import CALLING_TYPES, RESIDENT_TYPES
from lms3d.engine.tensorflow import reading
from lms3d.engine.tensorflow.bodies import running, size

LARGEST_BYTES = 10 << 20
"""CONST-3: the default of TensorFlow's `max_folded_constant_in_bytes`."""


class Folded:
    """The ops of a function that become constants. ops: the function's ops that run."""

    def __init__(self, ops: Sequence[tf.Operation]) -> None:
        self._alive = {op.name for op in ops}
        self._returned = {t.name for t in ops[0].graph.outputs} if ops else set()
        self._following = _following(ops)
        again = self._run_again(self._following)
        self._ops = {name: op for name, op in self._following.items() if name not in again}
        self.names = frozenset(self._ops)

    @cached_property
    def bytes(self) -> int:
        """The bytes of the constants (CONST-1, CONST-4)."""
        lasting, digests = list[tf.Tensor](), _digests(self._following.values())
        for op in self._ops.values():
            lasting += [t for t in op.outputs if self._is_read(t, self._ops)]
        return sum({(digests[t.op.name], t.value_index): size(t) or 0 for t in lasting}.values())

    def _run_again(self, following: dict[str, tf.Operation]) -> set[str]:
        """CONST-3: the ops that follow from constants, and run all the same."""
        found = set[str]()
        left = [
            op
            for op in following.values()
            if any((size(t) or 0) > LARGEST_BYTES and self._is_read(t, following) for t in op.outputs)
        ]
        while left:
            op = left.pop()
            if op.type != "Const" and op.name not in found:
                found.add(op.name)
                left += [t.op for t in op.inputs if t.op.name in following and not self._is_read(t, following)]
        return found

    def _is_read(self, tensor: tf.Tensor, among: dict[str, tf.Operation]) -> bool:
        """Whether the function returns a tensor, or an op that runs and is not `among` these reads it."""
        readers = (reader.name for reader in tensor.consumers())
        return tensor.name in self._returned or any(name in self._alive and name not in among for name in readers)


def _following(ops: Iterable[tf.Operation]) -> dict[str, tf.Operation]:
    """The ops that follow from constants alone, by name, each after the ops that it reads."""
    found = dict[str, tf.Operation]()
    left = [op for op in ops if op.type == "Const"]
    while left:
        op = left.pop()
        found[op.name] = op
        readers = {reader.name: reader for t in op.outputs for reader in t.consumers() if reader.name not in found}
        left += [one for one in readers.values() if _may_follow(one) and all(t.op.name in found for t in one.inputs)]
    return found


def _may_follow(op: tf.Operation) -> bool:
    """Whether an op becomes a constant if its inputs do."""
    alone = op.type not in RESIDENT_TYPES | CALLING_TYPES and not reading.is_stateful(op) and not reading.in_loop(op)
    return alone and "Random" not in op.type and all(size(t) is not None for t in op.outputs)


def _digests(ops: Iterable[tf.Operation]) -> dict[str, bytes]:
    """Name -> a hash that is equal for ops with equal results that wait for the same ops. ops: each after the ops that it reads."""
    found = dict[str, bytes]()
    for op in ops:
        hashed = hashlib.sha256(repr((op.type, sorted(control.name for control in op.control_inputs))).encode())
        for key, value in sorted(op.node_def.attr.items()):
            if not key.startswith("_"):
                hashed.update(key.encode() + value.SerializeToString(deterministic=True))
        for tensor in op.inputs:
            hashed.update(found[tensor.op.name] + str(tensor.value_index).encode())
        found[op.name] = hashed.digest()
    return found


def bytes_within(ops: Iterable[tf.Operation]) -> int:
    """The bytes of the constants in the functions that these ops run, at any depth (CONST-2)."""
    graphs = [graph for op in ops for graph in reading.functions_of(op).values()]
    bodies = [running(graph) for graph in graphs]
    return sum(Folded(body).bytes + bytes_within(body) for body in bodies)
