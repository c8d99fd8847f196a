"""`python -m experiments.passes`: how often does a block of isensee2017 pass over the volume?

The reads and writes of full size that normalisation, LeakyReLU, dropout and addition take beside their convolution, forward and
backward: the least that is possible, as compiled operations, and with TensorFlow's own. Counted in the traced graph, where views
pass over nothing; nothing is run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lms3d import console
from lms3d.engine.ir import METADATA_TYPES, RESIDENT_TYPES, StepGraph
from lms3d.experiments.harness import command
from lms3d.experiments.harness.table import markdown

if TYPE_CHECKING:
    import tensorflow as tf

SHAPE = (1, 32, 32, 32, 16)
LEAST = {"forward": (2, 1), "backward": (4, 1)}
"""Reads and writes of a block: statistics need the whole volume before its first voxel can be normalised, and so do the sums of the
gradient. An addend is read once more."""


class Passes(NamedTuple):
    """Reads and writes of tensors of the volume's size."""

    reads: int
    writes: int


def count(build: Callable[..., Sequence[tf.Tensor]]) -> Passes:
    """The passes of the function of three volumes that `build` traces."""
    import tensorflow as tf

    from lms3d.engine.passes import identities
    from lms3d.engine.tensorflow import functions
    from lms3d.engine.tensorflow.capture import capture

    def function(x: tf.Tensor, addend: tf.Tensor, dy: tf.Tensor) -> Sequence[tf.Tensor]:
        return build(x, addend, dy)

    traced = functions.trace(function, *[tf.TensorSpec(SHAPE)] * 3)
    identities.pass_identities(traced.graph)
    return _passes(capture(traced))


def _passes(graph: StepGraph) -> Passes:
    full = max(t.bytes or 0 for op in graph.ops for t in op.outputs)
    works = [op for op in graph.ops if not op.shares_input and op.type not in METADATA_TYPES | RESIDENT_TYPES]
    reads = sum(graph.tensors[name].bytes == full for op in works for name in op.inputs)
    return Passes(reads, sum(t.bytes == full for op in works for t in op.outputs))


def block(*, added: bool) -> tuple[Passes, Passes]:
    """The passes forward and backward. added: with an addition."""
    import tensorflow as tf

    from lms3d.models.isensee2017 import LEAKY_SLOPE
    from lms3d.models.layers import InstanceNormalization

    layer = InstanceNormalization(negative_slope=LEAKY_SLOPE)
    layer.build(SHAPE)
    multipliers = tf.ones((SHAPE[0], SHAPE[-1]))

    def forward(x: tf.Tensor, addend: tf.Tensor, dy: tf.Tensor) -> Sequence[tf.Tensor]:
        return [layer(x, multipliers=multipliers, addend=addend if added else None)]

    def both(x: tf.Tensor, addend: tf.Tensor, dy: tf.Tensor) -> Sequence[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, addend])
            (y,) = forward(x, addend, dy)
        return [y, *tape.gradient(y, [x, layer.gamma, layer.beta], dy)]

    one, whole = count(forward), count(both)
    return one, Passes(whole.reads - one.reads, whole.writes - one.writes)


def table() -> str:
    """The passes of a block, as Markdown."""
    from lms3d.models import fused

    ways: dict[str, Any] = {"compiled operations": contextlib.nullcontext(), "TensorFlow's own": fused.plain()}
    rows: dict[str, list[tuple[Passes, Passes]]] = {
        "the least": [
            (Passes(LEAST["forward"][0] + added, LEAST["forward"][1]), Passes(*LEAST["backward"])) for added in (0, 1)
        ]
    }
    for name, around in ways.items():
        with around:
            rows[name] = [block(added=added) for added in (False, True)]
    head = ("", "", "forward: reads", "writes", "backward: reads", "writes")
    return markdown(head, [
        (block_name, name, *(str(number) for passes in found[added] for number in passes))
        for added, block_name in enumerate(("normalisation, LeakyReLU, dropout", "and an addition"))
        for name, found in rows.items()
    ])  # fmt: skip


main, _parser = command.of("passes", lambda options, typed: console.say(table()), lambda parser: None, __doc__)


if __name__ == "__main__":
    sys.exit(main())
