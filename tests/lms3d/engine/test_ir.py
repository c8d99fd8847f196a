"""Levels, orders, and what a StepGraph refuses."""

from __future__ import annotations

import pytest

from lms3d.engine.ir import Op, topological
from tests.lms3d.engine.toy_graphs import op, placeholder, step, worked_example


def test_levels_of_the_worked_example():
    assert worked_example().levels == {"x": 0, "a": 1, "f1": 2, "f2": 3, "f3": 4, "f4": 5, "z": 6}


def test_the_longest_branch_sets_the_level():
    graph = step(placeholder(), op("a", "x"), op("b", "a"), op("c", "b"), op("join", "x", "c"), op("early", "x"))
    assert (graph.levels["join"], graph.levels["early"]) == (4, 1)


def test_control_inputs_count():
    graph = step(placeholder(), op("a", "x"), op("b", "a"), op("late", after=["b"]), op("c", "x", after=["late"]))
    assert (graph.levels["late"], graph.levels["c"]) == (3, 4)


def test_no_level_in_loops_and_for_inserted_ops():
    graph = step(placeholder(), op("body", "x", in_loop=True), op("lms/swap_in/x/0", "x", inserted=True), op("a", "x"))
    assert graph.levels == {"x": 0, "a": 1}


def test_consumers_and_edges():
    graph = step(placeholder(), op("twice", "x", "x"), op("b", "x", "twice"))
    assert graph.consumers == {"x:0": ("twice", "b"), "twice:0": ("b",)}
    assert [(t.name, a.name, b.name) for t, a, b in graph.edges()] == [
        ("x:0", "x", "twice"),
        ("x:0", "x", "b"),
        ("twice:0", "twice", "b"),
    ]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([op("a"), op("a")], "two ops are named 'a'"),
        ([op("a", "nowhere")], "'nowhere:0', which no earlier op makes"),
        ([op("a", after=["nowhere"])], "'nowhere', which no earlier op makes"),
        ([op("b", "a"), op("a")], "a cycle or an unknown name"),
        ([op("a"), op("b", "a:1")], "'a:1'"),
    ],
)
def test_refuses(ops, message):
    with pytest.raises(ValueError, match=message):
        step(*ops)


def test_topological_keeps_the_order_it_can_keep():
    ops = [op("c", "b"), op("a"), op("d"), op("b", "a")]
    assert [o.name for o in topological(ops)] == ["a", "d", "b", "c"]


def test_topological_puts_inserted_ops_as_early_as_they_can_run():
    ops = [op("a"), op("b", "a"), op("c", "b"), op("lms/swap_out/a", "a", inserted=True)]
    assert [o.name for o in topological(ops)] == ["a", "lms/swap_out/a", "b", "c"]


def test_topological_names_a_cycle():
    with pytest.raises(ValueError, match="there is a cycle through a, b"):
        topological([op("a", "b"), op("b", "a"), op("c")])
    with pytest.raises(ValueError, match="'nowhere', which does not exist"):
        topological([Op("a", "Conv3D", control_inputs=("nowhere",))])


def test_a_loop_may_be_cyclic():
    merge = op("merge", "x", "next", in_loop=True)
    ops = [placeholder(), merge, op("next", "merge", in_loop=True), op("after", "merge")]
    assert [o.name for o in topological(ops)] == ["x", "merge", "next", "after"]
    assert step(*ops).levels["after"] == 0


def test_topological_puts_a_loop_behind_what_it_reads_from_outside():
    """Found by `tests.stress graphs`, limits of batch 11: a control edge delays what the loop reads, and so the loop."""
    late = Op("a", "Conv3D", inputs=("x:0",), control_inputs=("b",), outputs=op("a").outputs)
    ops = [placeholder(), late, op("body", "a", in_loop=True), op("after", "body"), op("b", "x")]
    assert [o.name for o in topological(ops)] == ["x", "b", "a", "body", "after"]
