"""TFLMS's rules 1 to 5: which tensors are swapped, for whom, and when they come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.ir import Op, Tensor
from lms3d.engine.planners.tflms import Parameters, build
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from tests.lms3d.engine.toy_graphs import MIB, ladder, op, placeholder, step, worked_example


def plan(graph, threshold: int = 4, ahead: int = 1, groupby: int = 0, mode: int = 0, **others):
    return build(
        graph,
        Parameters(swapout_threshold=threshold, swapin_ahead=ahead, swapin_groupby=groupby, sync_mode=mode, **others),
    )


def swapped(made) -> list[str]:
    return [s.tensor for s in made.swap_outs]


def triggers(made) -> list[tuple[str, ...]]:
    return [s.triggers for s in made.swap_ins]


def test_predicted_seconds_hold_what_the_processor_does_for_hidden_transfers():
    graph, free = worked_example(), Machine(swap_share=0.0, node_seconds=0.0)
    chosen = Parameters(swapout_threshold=4, swapin_ahead=1, swapin_groupby=0, sync_mode=0)
    settings = Settings(limit_bytes=64 * MIB, planner="tflms", parameters=chosen)

    def seconds(machine: Machine) -> float:
        return make_plan(settings.request(graph, machine, with_floor=False))[1].predicted_step_seconds

    dear = replace(free, swap_share=2.0, node_seconds=1e-3)
    moving = MIB / free.swap_out_bytes_per_second + MIB / free.swap_in_bytes_per_second
    assert seconds(dear) - seconds(free) == pytest.approx(2.0 * moving + 2 * 1e-3)


# -- rules 1 to 3: candidates


def test_worked_example_threshold_4_swaps_a_for_z_triggered_by_f3():
    made = plan(worked_example())
    assert [(s.name, s.bytes) for s in made.swap_outs] == [("lms/swap_out/a", MIB)]
    assert [(s.name, s.consumers, s.triggers) for s in made.swap_ins] == [("lms/swap_in/a/0", ("z",), ("f3",))]
    assert edit.apply(worked_example(), made).by_name["z"].inputs == ("f4:0", "lms/swap_in/a/0:0")


def test_worked_example_threshold_5_inserts_nothing():
    assert plan(worked_example(), threshold=5).empty  # the distance is 5: > and not >=


def test_one_swap_out_and_near_consumers_keep_the_original():
    graph = ladder(12, [4, 8, 12])
    made = plan(graph)
    assert swapped(made) == ["a:0"]
    assert [s.consumers for s in made.swap_ins] == [("r8",), ("r12",)]
    edited = edit.apply(graph, made)
    assert edited.by_name["r4"].inputs == ("f3:0", "a:0")
    assert edited.by_name["f2"].inputs == ("a:0",)
    assert [edited.by_name[r].inputs[1] for r in ("r8", "r12")] == ["lms/swap_in/a/0:0", "lms/swap_in/a/1:0"]


def test_forward_to_forward_skips_count_as_any_other():
    graph = step(
        placeholder(),
        op("encoder", "x"),
        *[op(f"deep{i}", f"deep{i - 1}" if i else "encoder") for i in range(6)],
        op("decoder", "deep5", "encoder", type="ConcatV2"),
    )
    assert [s.consumers for s in plan(graph).swap_ins] == [("decoder",)]


def test_each_output_of_an_op_is_a_tensor_of_its_own():
    split = Op("split", "Split", ("x:0",), (), (Tensor("split:0", MIB, 4), Tensor("split:1", MIB, 4)))
    chain = [op(f"f{i}", f"f{i - 1}" if i else "split:0") for i in range(5)]
    graph = step(placeholder(), split, *chain, op("z", "f4", "split:1"))
    made = plan(graph)
    assert swapped(made) == ["split:1"]
    assert made.swap_ins[0].name == "lms/swap_in/split>1/0"


@pytest.mark.parametrize("changes", [{"rank": 0}, {"rank": 1}, {"rank": None}, {"mib": None}])
def test_never_scalars_vectors_and_unknown_shapes(changes):
    assert plan(worked_example(**changes)).empty
    assert swapped(plan(worked_example(rank=2))) == ["a:0"]


@pytest.mark.parametrize("kind", ["Placeholder", "ReadVariableOp", "Const", "VarHandleOp"])
def test_never_what_lives_outside_of_the_step(kind):
    chain = [op(f"f{i}", f"f{i - 1}" if i else "w") for i in range(6)]
    assert plan(step(op("w", type=kind), *chain, op("z", "f5", "w"))).empty
    again = op("same", "w", type="Identity")  # the same buffer under another name
    assert plan(step(op("w", type=kind), again, *chain, op("y", "same"), op("z", "f5", "same"))).empty


@pytest.mark.parametrize("where", [{"in_loop": True}, {"on_device": False}])
def test_never_in_loops_or_on_other_devices(where):
    chain = [op("f1", "a"), *[op(f"f{i}", f"f{i - 1}") for i in (2, 3, 4, 5, 6)]]
    assert plan(step(placeholder(), op("a", "x", **where), *chain, op("z", "f6", "a"))).empty
    assert plan(step(placeholder(), op("a", "x"), *chain, op("z", "f6", "a", **where))).empty


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("include_source_scopes", ("other",)),
        ("exclude_source_scopes", ("a",)),
        ("include_source_types", ("MatMul",)),
        ("exclude_source_types", ("Conv3D",)),
        ("include_consumer_scopes", ("other",)),
        ("exclude_consumer_scopes", ("z",)),
        ("include_consumer_types", ("MatMul",)),
        ("exclude_consumer_types", ("Conv3D",)),
    ],
)
def test_include_and_exclude(option, value):
    assert plan(worked_example(), **{option: value}).empty
    other_value = {"other": "a" if "source" in option else "z", "MatMul": "Conv3D"}.get(value[0], "nothing")
    assert swapped(plan(worked_example(), **{option: (other_value,)})) == ["a:0"]


def test_n_tensors():
    chain = [op(f"f{i}", f"f{i - 1}" if i else "c") for i in range(6)]
    ends = [op(f"z{t}", "f5", t) for t in "abc"]
    graph = step(placeholder(), op("a", "x"), op("b", "a"), op("c", "b"), *chain, *ends)
    found = {n: swapped(plan(graph, n_tensors=n)) for n in (0, 1, 2, 9, None)}
    everything = ["a:0", "b:0", "c:0"]
    assert found == {0: [], 1: everything[:1], 2: everything[:2], 9: everything, None: everything}


@pytest.mark.parametrize("pool", ["MaxPool", "MaxPool3D"])
def test_a_pooling_gradient_reads_the_pooling_itself(pool):
    """oneDNN joins the two by a hidden workspace; through a swap ties would be resolved by another kernel."""
    chain = [op(f"f{i}", f"f{i - 1}" if i else "a") for i in range(6)]
    graph = step(
        placeholder(), op("a", "x", type=pool), *chain, op("g", "f5", "a", type=f"{pool}Grad"), op("z", "f5", "a")
    )
    assert [s.consumers for s in plan(graph).swap_ins] == [("z",)]


# -- rule 4: groups


@pytest.mark.parametrize(
    ("groupby", "groups"),
    [
        (-1, [["r10"], ["r12"], ["r17"]]),
        (0, [["r10"], ["r12"], ["r17"]]),
        (1, [["r10"], ["r12"], ["r17"]]),
        (2, [["r10", "r12"], ["r17"]]),
        (5, [["r10", "r12", "r17"]]),  # the gap to the previous one counts, not to the first
    ],
)
def test_groups(groupby, groups):
    made = plan(ladder(17, [10, 12, 17]), groupby=groupby)
    assert [list(s.consumers) for s in made.swap_ins] == groups
    assert len(made.swap_outs) == 1
    assert triggers(made) == [(f"f{int(g[0][1:]) - 2}",) for g in groups]  # the first of a group times it


def test_two_consumers_at_one_level_are_two_groups_without_groupby():
    graph = step(*worked_example().ops, op("z2", "f4", "a"))
    assert [s.consumers for s in plan(graph, groupby=0).swap_ins] == [("z",), ("z2",)]
    assert [s.consumers for s in plan(graph, groupby=1).swap_ins] == [("z", "z2")]


# -- rule 5: triggers


@pytest.mark.parametrize(("ahead", "trigger"), [(1, "f3"), (2, "f2"), (3, "f1"), (4, "f4"), (100, "f4")])
def test_ahead(ahead, trigger):
    """From 4 on the only candidates are the source and older: fall back to the last op that feeds dest."""
    assert triggers(plan(worked_example(), ahead=ahead)) == [(trigger,)]


def _side_road(**options):
    """The worked example with `side` at the level of f3, before it in the graph's order."""
    ops = worked_example().ops
    return step(*ops[:4], op("side", "f2", **options), *ops[4:])


def test_a_trigger_must_reach_dest():
    assert _side_road().levels["side"] == _side_road().levels["f3"] == 4
    assert triggers(plan(_side_road())) == [("f3",)]


def test_a_trigger_must_reach_dest_through_data():
    ops = [o for o in _side_road().ops if o.name != "f4"]
    graph = step(*ops[:-1], op("f4", "f3", after=["side"]), ops[-1])
    assert triggers(plan(graph)) == [("f3",)]


def test_a_trigger_must_be_on_the_device():
    ops = list(worked_example().ops)
    ops[4] = op("f3", "f2", on_device=False)
    assert triggers(plan(step(*ops))) == [("f2",)]  # the next lower level that has one


def test_a_trigger_is_never_in_a_loop():
    ops = worked_example().ops
    graph = step(*ops[:4], op("loop", "f2", in_loop=True), *ops[4:6], op("z", "f4", "a", "loop"))
    for ahead in range(1, 8):
        assert triggers(plan(graph, ahead=ahead)) != [("loop",)]


def _window():
    """dest at level 30 with data from `e` (level 5) through `h` (level 26, held there by a control input)."""
    chain = [op(f"f{i}", f"f{i - 1}" if i > 2 else "a") for i in range(2, 30)]
    late = [op("e", "x", after=["f4"]), op("h", "e", after=["f25"]), op("z", "h", "a", after=["f29"])]
    graph = step(placeholder(), op("a", "x"), *chain, *late)
    assert [graph.levels[n] for n in ("a", "e", "h", "z")] == [1, 5, 26, 30]
    return graph


@pytest.mark.parametrize(
    ("ahead", "trigger"),
    [
        (1, "h"),  # levels 28 to 19
        (3, "h"),  # 26 to 17
        (14, "h"),  # 15 to 6 have none: fall back to the last that feeds dest
        (15, "e"),  # 14 to 5
        (24, "e"),  # 5 to 2
        (25, "h"),  # 4 to 2: none
    ],
)
def test_ten_levels_are_searched(ahead, trigger):
    assert triggers(plan(_window(), threshold=25, ahead=ahead)) == [(trigger,)]


def test_the_source_itself_and_older_ops_are_no_triggers():
    graph = step(placeholder(), op("a", "x"), op("f1", "a"), op("b", "x", after=["f1"]), op("z", "b", "a"))
    assert triggers(plan(graph, threshold=1, ahead=1)) == [("b",)]  # level 2 has only f1, which does not reach z
