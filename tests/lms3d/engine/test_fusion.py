"""Which ops become one program: connected, with no way out and back in; and what the program reads, makes again and returns."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lms3d.engine import fusion
from lms3d.engine.fusion import ELEMENTWISE, REDUCTION, VIEW, Fusible
from lms3d.engine.ir import PROGRAM_TYPE, Op, StepGraph, producer_name
from tests.lms3d.engine.toy_graphs import op, placeholder, step

KINDS = {"Mul": ELEMENTWISE, "Tanh": ELEMENTWISE, "Mean": REDUCTION, "Reshape": VIEW}


def fusible(graph: StepGraph, *folded: str) -> Fusible:
    kinds = {one.name: KINDS[one.type] for one in graph.ops if one.type in KINDS}
    return Fusible(kinds=kinds, folded=frozenset(folded))


def only_program(graph: StepGraph, *folded: str) -> fusion.Program:
    (group,) = fusion.groups(graph, fusible(graph, *folded))
    made = fusion.program(graph, group, fusible(graph, *folded))
    assert made is not None
    return made


def mul(name: str, *inputs: str, **options: object) -> Op:
    return op(name, *inputs, type="Mul", **options)


def test_a_chain_between_convolutions_is_one_program():
    graph = step(placeholder(), op("c", "x"), mul("a", "c"), mul("b", "a"), op("d", "b"), returned=["d"])
    made = only_program(graph)
    assert (made.ops, made.inputs, made.outputs) == (("a", "b"), ("c:0",), ("b:0",))
    after = fusion.contracted(graph, made, [])
    assert [one.name for one in after.ops] == ["x", "c", "compiled/b", "d"]
    assert after.by_name["compiled/b"].type == PROGRAM_TYPE
    assert after.by_name["d"].inputs == ("compiled/b:0",)


def test_what_a_step_runs_for_may_be_gone_when_the_next_program_is_taken():
    graph = step(
        placeholder(), mul("a", "x"), mul("b", "a"), op("c", "b"), mul("d", "c"), mul("e", "d"), returned=["e"],
    )  # fmt: skip
    after = graph
    for group in fusion.groups(graph, fusible(graph)):
        made = fusion.program(after, group, fusible(graph))
        assert made is not None
        after = fusion.contracted(after, made, ["x", "e"])
    assert [one.name for one in after.ops] == ["x", "compiled/b", "c", "compiled/e"]


def test_a_way_out_and_back_in_divides_a_group():
    """a and b both lead to e, but b does by a convolution: one program of all three would wait for itself."""
    graph = step(
        placeholder(), op("c", "x"), mul("a", "c"), mul("b", "a"), op("d", "b"), mul("e", "a", "d"), mul("f", "e"),
        returned=["f"],
    )  # fmt: skip
    assert fusion.groups(graph, fusible(graph)) == [("e", "f"), ("a", "b")]


def test_a_control_edge_through_an_op_that_stays_divides_a_group_too():
    graph = step(
        placeholder(), mul("a", "x"), mul("b", "a"), op("d", "x", after=["b"]), mul("e", "b", after=["d"]), mul("f", "e"),
        returned=["f"],
    )  # fmt: skip
    assert fusion.groups(graph, fusible(graph)) == [("e", "f"), ("a", "b")]


def test_who_waited_for_an_op_waits_for_its_program():
    graph = step(
        placeholder(), op("c", "x"), mul("a", "x", after=["c"]), mul("b", "a"), op("d", "x", after=["a"]), returned=["b", "d"]
    )  # fmt: skip
    after = fusion.contracted(graph, only_program(graph), [])
    assert after.by_name["compiled/b"].control_inputs == ("c",)
    assert after.by_name["d"].control_inputs == ("compiled/b",)
    assert after.returned == {"compiled/b:0", "d:0"}


def test_views_at_the_edge_stay_and_constants_go_inside():
    graph = step(
        placeholder(), op("k", type="Const"), mul("a", "x", "k"), mul("b", "a"), op("v", "b", type="Reshape"), op("d", "v"),
        returned=["d"],
    )  # fmt: skip
    made = only_program(graph, "k:0")
    assert (made.inputs, made.outputs, made.kept_views) == (("x:0",), ("b:0",), {"v"})
    after = fusion.contracted(graph, made, [])
    assert after.by_name["v"].inputs == ("compiled/b:0",)
    assert after.by_name["d"].inputs == ("v:0",)


def normalised() -> StepGraph:
    """conv -> mean, difference, activation -> conv; the gradient reads all of them but the activation."""
    return step(
        placeholder(),
        op("conv", "x", type="Conv3D"),
        op("mean", "conv", type="Mean", mib=0.001),
        mul("difference", "conv", "mean"),
        mul("scaled", "difference"),
        mul("active", "scaled"),
        op("next", "active"),
        op("gradient", "next"),
        mul("g1", "gradient", "scaled"),
        mul("g2", "g1", "difference", "conv"),
        op("filter", "g2", "x"),
        returned=["filter"],
    )


def test_a_gradient_keeps_what_the_convolution_made_and_no_more():
    graph = normalised()
    able = fusible(graph)
    gradient, forward = fusion.groups(graph, able)
    made = fusion.program(graph, gradient, able)
    assert made is not None
    assert set(made.inputs) == {"gradient:0", "conv:0", "mean:0"}  # the mean is not made again
    assert made.rematerialised == ("difference", "scaled")
    assert made.saved_bytes == (2 << 20) - 1024  # the mean
    after = fusion.contracted(graph, made, [])
    first = fusion.program(after, forward, able)
    assert first is not None
    assert first.outputs == ("mean:0", "active:0")


def test_what_is_kept_anyway_costs_nothing():
    """If a filter gradient reads the tensors themselves, nothing is gained by making them again."""
    graph = normalised()
    graph = graph.with_ops((*graph.ops, op("later", "scaled", "difference")))
    able = fusible(graph)
    made = fusion.program(graph, fusion.groups(graph, able)[0], able)
    assert made is not None
    assert made.rematerialised == ()
    assert made.inputs == made.plain_inputs
    assert made.saved_bytes == 0


def test_without_rematerialisation_it_reads_what_its_ops_read():
    graph = normalised()
    made = fusion.program(graph, fusion.groups(graph, fusible(graph))[0], fusible(graph))
    assert made is not None
    plain = made.without_rematerialisation()
    assert (plain.rematerialised, plain.inputs, plain.saved_bytes) == ((), made.plain_inputs, 0)


recipes = st.lists(
    st.tuples(st.sampled_from(["Mul", "Mean", "Reshape", "Conv3D"]), st.integers(1, 4), st.integers(1, 9)), max_size=24
)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=50)  # other work must not fail it
@given(recipes)
def test_all_programs_together_make_no_cycle(recipe):
    """Random steps: each program in the place of its ops, the last first; `contracted` raises if there is a cycle."""
    ops = [placeholder("n0")]
    for i, (kind, *back) in enumerate(recipe):
        inputs = dict.fromkeys(ops[max(0, len(ops) - b)].name for b in back)
        ops.append(op(f"n{i + 1}", *([*inputs][:1] if kind in ("Mean", "Reshape") else inputs), type=kind))
    graph = step(*ops, returned=[ops[-1].name, ops[len(ops) // 2].name])
    able = fusible(graph)
    for group in fusion.groups(graph, able):
        assert outside_path(graph, group) is None
        made = fusion.program(graph, [name for name in group if name in graph.by_name], able)
        if made is not None:
            graph = fusion.contracted(graph, made, [])
    StepGraph(graph.ops, graph.returned)  # each op after its inputs


def outside_path(graph: StepGraph, group: tuple[str, ...]) -> str | None:
    """An op outside of the group that lies on a way from it back to it."""
    reached: set[str] = set()
    for one in graph.ops:
        sources = {producer_name(t) for t in one.inputs}
        if one.name in group and sources & reached:
            return one.name
        if one.name not in group and sources & (reached | set(group)):
            reached.add(one.name)
    return None
