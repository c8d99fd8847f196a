"""The list scheduler: serial compute, serial links, stalls and the peak, with times by hand."""

from __future__ import annotations

from dataclasses import replace

from lms3d.engine import edit
from lms3d.engine.cost import op_seconds, step_seconds
from lms3d.engine.plan import Plan, SwapIn, SwapOut
from lms3d.engine.step_model.simulate import simulate
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, worked_example


def test_compute_is_serial():
    graph = step(placeholder(), op("a", "x", flops=2), op("b", "x", flops=3), op("c", "a", "b", flops=1))
    run = simulate(graph, SECONDS)
    assert run.seconds == 6
    assert run.timeline_seconds == (0, 2, 5)
    assert run.timeline_bytes == (MIB, 2 * MIB, 3 * MIB)


def test_what_moves_no_data_takes_no_time():
    graph = step(op("a", flops=1), op("same", "a", type="Reshape", flops=9), op("b", "same", flops=1))
    assert simulate(graph, SECONDS).seconds == step_seconds(graph, SECONDS) == 2


def test_an_op_takes_its_arithmetic_or_its_traffic():
    machine = replace(SECONDS, bytes_per_second=MIB, op_seconds=0.5)
    graph = step(placeholder(mib=2), op("a", "x", mib=3, flops=4), op("b", "x", mib=3, flops=7))
    assert [op_seconds(graph, o, machine) for o in graph.ops] == [0, 5.5, 7.5]


def swap(graph, consumer: str = "z", trigger: str = "f3"):
    back = SwapIn(tensor="a:0", copy=0, consumers=(consumer,), triggers=(trigger,))
    return edit.apply(graph, Plan(swap_outs=(SwapOut(tensor="a:0", bytes=MIB),), swap_ins=(back,)))


def test_a_swap_in_hides_behind_compute():
    run = simulate(swap(worked_example(flops=1)), SECONDS)
    assert run.seconds == 6  # out 1-2, back 4-5 beside f4, z 5-6


def test_a_slow_swap_in_stalls_the_step():
    slow = replace(SECONDS, swap_in_bytes_per_second=MIB / 4)
    assert simulate(swap(worked_example(flops=1)), slow).seconds == 9  # back 4-8, z 8-9


def test_a_late_trigger_stalls_the_step():
    assert simulate(swap(worked_example(flops=1), trigger="f4"), SECONDS).seconds == 7


def test_each_link_is_serial():
    chain = [op("a", "x", flops=1), op("b", "a", flops=1), op("f", "b", flops=1), op("z", "f", "a", "b", flops=1)]
    graph = step(placeholder(), *chain)
    outs = tuple(SwapOut(tensor=f"{t}:0", bytes=MIB) for t in "ab")
    backs = tuple(SwapIn(tensor=f"{t}:0", copy=0, consumers=("z",), triggers=("f",)) for t in "ab")
    run = simulate(edit.apply(graph, Plan(swap_outs=outs, swap_ins=backs)), SECONDS)
    assert run.seconds == 6  # f ends at 3, the two come back one after the other, 3-4 and 4-5
    slow_out = replace(SECONDS, swap_out_bytes_per_second=MIB / 3)
    assert simulate(edit.apply(graph, Plan(swap_outs=outs, swap_ins=backs)), slow_out).seconds == 9  # out 1-4, 4-7


def test_what_is_read_in_place_does_not_wait_for_what_is_copied():
    """Found by tests.stress graphs (simulator, batch 23): both become ready at once, and the copy stands first."""
    graph = step(
        op("a", flops=1),
        op("copied", "a", type="SwapIn", mib=1),
        op("in_place", "a", type="SwapIn", mib=0),
        op("b", "in_place", flops=1),
        op("z", "b", "copied", flops=1),
    )
    assert simulate(graph, SECONDS).seconds == 3  # a 0-1, b 1-2 beside the copy, z 2-3


def thick_middle():
    """The worked example with an f2 of 4 MiB."""
    ops = list(worked_example(flops=1).ops)
    ops[3] = op("f2", "f1", mib=4, flops=1)
    return step(*ops, returned=["z"], resident_mib=2)


def test_peak():
    assert simulate(thick_middle(), SECONDS).peak_bytes == 8 * MIB  # resident, a, f1, f2
    assert simulate(swap(thick_middle()), SECONDS).peak_bytes == 7 * MIB


def test_a_swap_out_holds_its_tensor_until_it_is_complete():
    slow = replace(SECONDS, swap_out_bytes_per_second=MIB / 3)
    assert simulate(swap(thick_middle()), slow).peak_bytes == 8 * MIB


def test_workspace_is_taken_while_the_op_runs():
    graph = step(op("a", workspace_bytes=5 * MIB, flops=1), op("b", "a", flops=1))
    run = simulate(graph, SECONDS)
    assert (run.peak_bytes, run.timeline_bytes) == (6 * MIB, (6 * MIB, 2 * MIB))


def test_forwarding_and_returned_tensors():
    relu = step(op("a", flops=1), op("b", "a", type="Relu", flops=1), returned=["b"])
    assert simulate(relu, SECONDS).peak_bytes == MIB
    assert simulate(replace(relu, returned=frozenset({"a:0", "b:0"})), SECONDS).peak_bytes == 2 * MIB


def test_an_empty_step():
    assert simulate(step(resident_mib=1), SECONDS).peak_bytes == MIB
