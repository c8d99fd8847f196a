"""One step in one form after the other: whatever is asked, the first form comes back, edge by edge."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.cost import Machine
from lms3d.engine.passes import manager, slicing
from lms3d.engine.passes.base import Target
from lms3d.engine.passes.compiling import Compile
from lms3d.engine.passes.forms import Forms
from lms3d.engine.passes.slicing import Slice
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions, surgery
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tensorflow.programs import Costs, Pair

SHAPE = (1, 16, 16, 16, 4)
FINE, COARSE = ((0, 4),), ((0, 2),)


@pytest.fixture
def function(monkeypatch):
    """A training step with a variable that slabs and programs read, and that the step updates."""
    monkeypatch.setattr(tuning, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(tuning, "PROGRAM_SHARE", 0.0)
    monkeypatch.setattr(Costs, "pair", lambda self, candidate: Pair(1.0, 0.5, 0))
    kernel = tf.Variable(tf.random.stateless_normal((3, 3, 3, 4, 4), (1, 2)))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.nn.gelu(tf.nn.conv3d(x, kernel, [1] * 5, "SAME") * 2.0 + 1.0)
            loss = tf.reduce_sum(tf.nn.conv3d(y, kernel, [1] * 5, "SAME") ** 2)
        kernel.assign_sub(0.01 * tape.gradient(loss, kernel))
        return loss

    traced = functions.trace(step, tf.TensorSpec(SHAPE))
    traced.kernel = kernel  # it lives as long as the function
    return traced


def forms_of(function) -> Forms:
    def ask():
        manager.normalise(function, Target())
        return Settings(limit_bytes=1 << 40).request(capture(function), Machine())

    return Forms(function, ask, Compile)


def test_each_form_is_there_again_when_it_is_taken(function):
    forms = forms_of(function)
    traced = forms.as_traced()
    asked = [traced, forms.with_programs(traced), forms.in_slabs(FINE, traced), forms.in_slabs(COARSE, traced)]
    graphs = [form.request.graph for form in asked]
    assert len(set(map(repr, graphs))) == len(graphs)
    for place in (0, 2, 1, 3, 2, 0, 3, 1, 0):
        forms.take(asked[place])
        assert capture(function) == graphs[place]
    assert forms.as_traced().request.graph == graphs[0]


def test_ops_of_a_form_are_those_that_run(function):
    forms = forms_of(function)
    traced = forms.as_traced()
    sliced = forms.in_slabs(FINE, traced)
    names = [{node.name for node in forms.nodes(form)} for form in (traced, sliced)]
    assert any(name.startswith("slabs/") for name in names[1])
    assert not any(name.startswith("slabs/") for name in names[0])


def test_a_form_that_changes_nothing_is_the_step_as_traced():
    function = functions.trace(tf.tanh, tf.TensorSpec((4,)))
    forms = Forms(function, lambda: Settings(limit_bytes=1).request(capture(function), Machine()))
    traced = forms.as_traced()
    assert forms.with_programs(traced) is traced
    found = forms.in_slabs(FINE, traced)
    assert (found.changed, found.slabs, found.request) == (False, FINE, traced.request)


def test_slabs_and_programs_exclude_each_other(function):
    manager.run(function, [one := Compile()])
    assert one.made.changed
    with pytest.raises(RuntimeError, match="pass slice: found programs; expected a step without any"):
        manager.run(function, [Slice({0: 2})])
    one.made.edits.undo()
    assert manager.run(function, [Slice({0: 2})]) == ("slice",)
    with pytest.raises(RuntimeError, match="pass compile: found slabs or programs; expected a step as traced"):
        manager.run(function, [Compile()])


def test_slices_that_return_other_shapes_are_found(function, monkeypatch):
    slice_function = slicing.slice_function

    def cut(function, slabs):
        made = slice_function(function, slabs)
        returned = function.graph.outputs[0]
        with surgery.insertion(function.graph, None):
            surgery.replace_outputs(function.graph, {returned.name: tf.expand_dims(returned, 0)})
        return made

    monkeypatch.setattr(slicing, "slice_function", cut)
    with pytest.raises(RuntimeError, match=r"pass slice: '.*' is .* of float32; expected .* of float32; please report"):
        manager.run(function, [Slice({0: 2})])
