"""What a plan does to a step."""

from __future__ import annotations

import pytest

from lms3d.engine import edit
from lms3d.engine.plan import Plan, Recompute, SwapIn, SwapOut
from tests.lms3d.engine.toy_graphs import MIB, op, placeholder, step, worked_example

OUT = SwapOut(tensor="a:0", bytes=MIB)


def back(copy: int = 0, consumers: tuple[str, ...] = ("z",), triggers: tuple[str, ...] = ("f3",), **more) -> SwapIn:
    return SwapIn(tensor="a:0", copy=copy, consumers=consumers, triggers=triggers, **more)


def test_swap_before_and_after():
    before = worked_example()
    after = edit.apply(before, Plan(swap_outs=(OUT,), swap_ins=(back(),)))
    assert before.by_name["z"].inputs == ("f4:0", "a:0")
    assert after.by_name["z"].inputs == ("f4:0", "lms/swap_in/a/0:0")
    assert after.by_name["f1"].inputs == ("a:0",)
    assert after.by_name["lms/swap_out/a"].inputs == ("a:0",)
    inserted = after.by_name["lms/swap_in/a/0"]
    assert (inserted.inputs, inserted.control_inputs, inserted.inserted) == (("lms/swap_out/a:0",), ("f3",), True)
    assert inserted.outputs[0].bytes == MIB
    assert after.levels == before.levels | {"z": 6}  # inserted ops have none
    assert len(after.ops) == len(before.ops) + 2


def test_recompute_before_and_after():
    again = Recompute(op="a", tensor="a:0", copy=0, consumers=("z",), triggers=("f4",))
    after = edit.apply(worked_example(), Plan(recomputes=(again,)))
    copy = after.by_name["lms/recompute/a"]
    assert (copy.type, copy.inputs, copy.control_inputs) == ("Conv3D", ("x:0",), ("f4",))
    assert after.by_name["z"].inputs == ("f4:0", "lms/recompute/a:0")
    assert after.by_name["a"] == worked_example().by_name["a"]


def test_a_recomputed_op_can_read_a_swapped_copy():
    graph = step(placeholder(), op("a", "x"), op("b", "a"), op("c", "b"), op("d", "c"), op("z", "d", "b"))
    plan = Plan(
        swap_outs=(OUT,),
        swap_ins=(back(consumers=("lms/recompute/b",), triggers=("c",)),),
        recomputes=(Recompute(op="b", tensor="b:0", copy=0, consumers=("z",), triggers=("d",)),),
    )
    after = edit.apply(graph, plan)
    assert after.by_name["lms/recompute/b"].inputs == ("lms/swap_in/a/0:0",)
    assert after.by_name["b"].inputs == ("a:0",)


def test_through_an_identity():
    graph = step(placeholder(), op("a", "x"), op("same", "a", type="Identity"), op("f3", "a"), op("z", "f3", "same"))
    plan = Plan(swap_outs=(OUT,), swap_ins=(back(consumers=(), through=(("z", "same:0"),)),))
    assert edit.apply(graph, plan).by_name["z"].inputs == ("f3:0", "lms/swap_in/a/0:0")


def test_waiters_and_own_edges():
    out = SwapOut(tensor="a:0", bytes=MIB, waiters=("f2",))
    after = edit.apply(worked_example(), Plan(swap_outs=(out,), swap_ins=(back(),), control_edges=(("f1", "f3"),)))
    assert after.by_name["f2"].control_inputs == ("lms/swap_out/a",)
    assert after.by_name["f3"].control_inputs == ("f1",)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(swap_outs=(OUT,), swap_ins=(back(consumers=("f3",)),)), "op 'f3' does not read 'a:0'"),
        (Plan(swap_outs=(OUT,), swap_ins=(back(consumers=("who",)),)), "op 'who' does not read 'a:0'"),
        (Plan(swap_outs=(OUT,), swap_ins=(back(triggers=("who",)),)), "'who', which does not exist"),
        (Plan(swap_outs=(OUT,), swap_ins=(back(0), back(1))), "op 'z' would read 'a:0' from two copies"),
        (Plan(swap_outs=(OUT,), swap_ins=(back(triggers=("z",)),)), "there is a cycle through"),
        (Plan(control_edges=(("z", "f1"),)), "there is a cycle through"),
        (Plan(swap_outs=(OUT, OUT), swap_ins=(back(),)), "lms/swap_out/a"),
        (Plan(swap_outs=(SwapOut(tensor="b:0", bytes=1),)), "'b', which does not exist"),
        (Plan(swap_ins=(back(),)), "'lms/swap_in/a/0' brings back 'a:0', which no swap-out"),
        (
            Plan(recomputes=(Recompute(op="b", tensor="b:0", copy=0, consumers=("z",), triggers=()),)),
            "'b', which does not exist",
        ),
    ],
)
def test_refuses(plan, message):
    with pytest.raises(ValueError, match=message):
        edit.apply(worked_example(), plan)


def test_nothing_to_do_changes_nothing():
    assert Plan().empty
    assert edit.apply(worked_example(), Plan()) == worked_example()


def test_names_and_json():
    plan = Plan(
        swap_outs=(SwapOut(tensor="net/a:1", bytes=7, waiters=("f1",)),),
        swap_ins=(SwapIn(tensor="net/a:1", copy=2, consumers=("z",), triggers=("f",), through=(("q", "same:0"),)),),
        recomputes=(Recompute(op="net/r", tensor="net/r:1", copy=1, consumers=("z",), triggers=()),),
        control_edges=(("f", "g"),),
        planner="tflms",
        parameters={"swapout_threshold": 4},
    )
    assert (plan.swap_outs[0].name, plan.swap_ins[0].name) == ("lms/swap_out/net/a>1", "lms/swap_in/net/a>1/2")
    assert (plan.recomputes[0].name, plan.recomputes[0].output) == ("lms/recompute/net/r/1", "lms/recompute/net/r/1:1")
    assert (plan.swapped_out_bytes, plan.swapped_in_bytes) == (7, 7)
    import json

    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
