"""A pass is a class and a line: every step then gets it, and the manager holds it to its `requires` and `ensures`."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.engine.cost import Machine
from lms3d.engine.engine import Engine
from lms3d.engine.passes import NORMALISING, manager
from lms3d.engine.passes.base import Normalising, Target
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions, surgery
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers.host import HostTier
from tests.lms3d.engine.traced import SPEC, batch, by_tflms, chain, same_bits


class CancelNegations(Normalising):
    """Requires a step without a plan. Ensures that nobody reads the negation of a negation."""

    name = "negations"

    def edit(self, graph: tf.Graph) -> int:
        found = _negations(graph)
        for reader, place, tensor in found:
            surgery.set_input(reader, place, tensor.op.inputs[0].op.inputs[0])
        return len(found)

    def ensures(self, function) -> None:
        if _negations(function.graph):
            raise RuntimeError("pass negations: one is still read")


def _negations(graph: tf.Graph) -> list[tuple[tf.Operation, int, tf.Tensor]]:
    """(reader, index of its input, input) of each reader of a double negation."""
    inputs = ((op, i, tensor) for op in graph.get_operations() for i, tensor in enumerate(op.inputs))
    return [(op, i, t) for op, i, t in inputs if t.op.type == "Neg" and t.op.inputs[0].op.type == "Neg"]


@pytest.fixture
def own():
    NORMALISING.register("negations")(CancelNegations)
    yield
    NORMALISING.remove("negations")


def step(x: tf.Tensor) -> tf.Tensor:
    return tf.sin(tf.negative(tf.negative(tf.tanh(x))))


def prepared():
    """The step as the engine runs it."""
    engine = Engine(Settings(limit_bytes=1 << 40, tier="host"), compute_device="CPU:0", machine=Machine())
    return engine.prepare(functions.trace(step, SPEC), "function").function


def kinds(function) -> list[str]:
    return [op.type for op in capture(function).ops]


def test_every_step_gets_it(own):
    function = prepared()
    assert "Neg" not in kinds(function)
    same_bits(function(batch()), step(batch()))


def test_without_the_line_no_step_does():
    assert kinds(prepared()).count("Neg") == 2


def test_the_manager_says_what_changed(own):
    function = functions.trace(step, SPEC)
    assert manager.normalise(function, Target()) == ("negations",)
    assert manager.normalise(function, Target()) == ()


def test_a_pass_that_changes_nothing_is_not_asked_what_it_ensures():
    class Idle(CancelNegations):
        def edit(self, graph: tf.Graph) -> int:
            return 0

    assert manager.run(functions.trace(step, SPEC), [Idle(Target())]) == ()


def test_a_pass_that_does_not_keep_its_word_is_named():
    class Lazy(CancelNegations):
        def edit(self, graph: tf.Graph) -> int:
            return 1

    with pytest.raises(RuntimeError, match="pass negations: one is still read"):
        manager.run(functions.trace(step, SPEC), [Lazy(Target())])


def test_nothing_is_normalised_under_a_plan():
    function = by_tflms(chain, HostTier()).function
    before = capture(function)
    with pytest.raises(RuntimeError, match="pass negations: found the nodes of a plan; expected a step without any"):
        manager.run(function, [CancelNegations(Target())])
    assert capture(function) == before
