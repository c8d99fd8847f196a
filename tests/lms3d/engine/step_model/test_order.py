"""What only ends in a weight does not wait."""

from __future__ import annotations

from lms3d.engine.step_model.order import branch_ends_first, ready_first
from tests.lms3d.engine.toy_graphs import op, placeholder, step


def names(graph) -> list[str]:
    return [o.name for o in graph.ops]


def backward():
    """Two convolutions, the gradient of the input before that of the filter, and the updates at the end."""
    conv = {"flops": 1}
    return step(
        placeholder(),
        op("a", "x", **conv),
        op("b", "a", **conv),
        op("metric", "b", type="Sum"),
        op("db", "b", type="Neg"),
        op("b_input", "db", **conv),
        op("b_filter", "a", "db", **conv),
        op("a_filter", "x", "b_input", **conv),
        op("update_b", "b_filter", type="Mul"),
        op("update_a", "a_filter", type="Mul"),
        returned=["metric"],
    )


def test_filter_gradients_and_updates_go_ahead():
    assert names(branch_ends_first(backward())) == [
        "x", "a", "b", "metric", "db", "b_filter", "update_b", "b_input", "a_filter", "update_a",
    ]  # fmt: skip


def test_a_constant_traced_just_before_a_filter_gradient_does_not_hold_it_back():
    graph = backward()
    with_sizes = [
        later
        for o in graph.ops
        for later in (
            (op("sizes", type="Const"), op("b_filter", "a", "sizes", "db", flops=1)) if o.name == "b_filter" else (o,)
        )
    ]
    order = names(branch_ends_first(graph.with_ops(tuple(with_sizes))))
    assert order.index("b_filter") < order.index("b_input")


def test_they_still_wait_for_what_controls_them():
    graph = backward()
    late = [
        o if o.name != "update_b" else op("update_b", "b_filter", type="Mul", after=["a_filter"]) for o in graph.ops
    ]
    order = names(branch_ends_first(graph.with_ops(tuple(late))))
    assert order.index("update_b") > order.index("a_filter")
    assert order.index("b_filter") < order.index("b_input")


def test_nothing_moves_without_convolutions_and_matrix_products():
    graph = step(placeholder(), op("a", "x"), op("b", "a"), op("c", "x"), op("d", "b", "a"), op("e", "c"))
    assert branch_ends_first(graph).ops == graph.ops


def test_what_a_loop_reads_stays_where_it_is():
    loop = [op("q", "x"), op("body", "q", in_loop=True)]
    graph = step(placeholder(), op("n", "x"), *loop, op("m", "n", flops=1))
    assert names(branch_ends_first(graph)) == ["x", "n", "m", "q", "body"]
    graph = step(placeholder(), op("n", "x"), op("q", "x"), op("m", "n", flops=1))
    assert names(branch_ends_first(graph)) == ["x", "q", "n", "m"]


def forward():
    """Two convolutions; the kernel of the second is traced just before it."""
    conv = {"flops": 1}
    return step(
        placeholder(),
        placeholder("w"),
        op("a", "x", **conv),
        op("kernel", "w", type="Transpose"),
        op("b", "a", "kernel", **conv),
        returned=["b"],
    )


def test_what_waits_for_nothing_runs_at_once():
    assert names(ready_first(forward())) == ["x", "w", "kernel", "a", "b"]


def test_what_waits_for_a_convolution_or_a_loop_does_not():
    late, graph = op("kernel", "w", type="Transpose", after=["a"]), forward()
    held = graph.with_ops(tuple(late if o.name == "kernel" else o for o in graph.ops))
    assert ready_first(held).ops == held.ops
    loop = [op("q", "x"), op("body", "q", in_loop=True), op("c", "body"), op("d", "x")]
    assert names(ready_first(step(placeholder(), *loop))) == ["x", "q", "d", "body", "c"]
