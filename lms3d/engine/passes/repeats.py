"""Small numbers that are computed again and again from the same inputs are computed once.

Keras's optimisers compute the same scalars for each variable. For isensee2017, which has 114 variables, Adam reads the number of
the step 228 times and takes 228 powers of its betas. On a GPU these 1,350 launches come before the first convolution, and nothing
else runs beside them: 17 of the 100 ms of a step at 192^3 on an H200.

    step --> cast --> pow(beta) --> kernel's update             step --> cast --> pow(beta) --> kernel's update
    step --> cast --> pow(beta) --> bias's update                                          '--> bias's update

REPEAT-1  Two ops are equal if their type, attributes, device and inputs are, and if they wait for the same ops. So two reads of a
          variable are equal only if no update of it comes between them.
REPEAT-2  Only tensors of at most `tuning.SHARED_BYTES` are shared. A larger one that is computed again may have been meant to save
          memory.
REPEAT-3  A step in slabs, in pieces or with programs is left alone: it was a whole step before, and the planes that slabs read of
          their neighbours are cut out anew for each reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.ir import CALLING_TYPES
from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.bodies import size
from lms3d.engine.tensorflow.capture import runs_once, traced_order

_READ, _GRADIENT = "ReadVariableOp", "_gradient_op_type"


class ComputeOnce(Normalising):
    """Requires a step without a plan. Ensures that of equal ops with small results one alone is read."""

    name = "repeats"

    def edit(self, graph: tf.Graph) -> int:
        return compute_once(graph)

    def ensures(self, function: Function) -> None:
        for op, first in _repeats(function.graph):
            if any(output.consumers() for output in op.outputs):
                raise RuntimeError(
                    f"pass {self.name}: {op.name!r} is read, which computes the same as {first.name!r}; please report this graph"
                )


def compute_once(graph: tf.Graph) -> int:
    """Lets the readers of repeated ops read the first ones; returns how many inputs changed."""
    return sum(
        surgery.redirect(old, new)
        for op, first in _repeats(graph)
        for old, new in zip(op.outputs, first.outputs, strict=True)
    )


def _repeats(graph: tf.Graph) -> Iterator[tuple[tf.Operation, tf.Operation]]:
    """(op, the first op that is equal to it), in the order of the step: an edit of one shows in the inputs of the next."""
    if reading.order_of(graph):  # REPEAT-3
        return
    known: dict[Any, list[tuple[dict[str, bytes], tf.Operation]]] = {}
    for op in traced_order(graph):
        if not _may_be_shared(op):
            continue
        waits = frozenset(before.name for before in op.control_inputs)
        alike = known.setdefault((op.type, op.device, tuple(t.name for t in op.inputs), waits), [])
        attributes = _attributes(op)
        first = next((one for others, one in alike if others == attributes), None)
        if first is None:
            alike.append((attributes, op))
        else:
            yield op, first


def _may_be_shared(op: tf.Operation) -> bool:
    if reading.in_loop(op) or op.type in CALLING_TYPES or not op.outputs:
        return False
    if op.type in ("Placeholder", "PlaceholderWithDefault") or (runs_once(op) and op.type != _READ):
        return False
    sizes = [size(t) for t in op.outputs]
    return all(one is not None and 0 < one <= tuning.SHARED_BYTES for one in sizes)  # REPEAT-2


def _attributes(op: tf.Operation) -> dict[str, bytes]:
    """The attributes that decide what an op computes, and which gradient it has."""
    found = op.node_def.attr
    names = [name for name in found if not name.startswith("_") or name == _GRADIENT]
    return {name: found[name].SerializeToString(deterministic=True) for name in names}
