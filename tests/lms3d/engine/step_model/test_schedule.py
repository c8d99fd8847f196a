"""When copies begin and originals go, by the rules of `schedule`. A second for each op and each MiB."""

from __future__ import annotations

from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from tests.lms3d.engine.toy_graphs import SECONDS, op, placeholder, step


def scheduled(*made: str):
    """`made`, each of 2 MiB, one after the other, are swapped out; six ops of 0.1 MiB follow; the last op reads all."""
    large = [op(name, "x", mib=2, flops=1) for name in made]
    small = [op(f"t{i}", f"t{i - 1}" if i else made[-1], mib=0.1, flops=1) for i in range(6)]
    graph = step(placeholder(mib=0.1), *large, *small, op("z", "t5", *made, mib=0.1, flops=1))
    problem = reduce(graph, SECONDS)
    index = {buffer.root.removesuffix(":0"): b for b, buffer in enumerate(problem.buffers)}
    schedule = build(problem, {index[name]: Choice(Mode.SWAP) for name in made}, SECONDS)
    event = {problem.anchors[e.anchor]: i for i, e in enumerate(schedule.events)}
    return schedule, index, event


def test_a_swap_out_begins_when_its_op_has_ended():
    schedule, index, event = scheduled("a")
    assert schedule.release[index["a"]] == event["t2"]  # made in the first second, written in the second and third


def test_swap_outs_take_turns():
    schedule, index, event = scheduled("a", "b")
    assert schedule.release[index["a"]] == event["t1"]
    assert schedule.release[index["b"]] == event["t3"]  # its link is busy with `a` for another second


def test_swap_ins_begin_as_late_as_hides_them():
    schedule, index, event = scheduled("a", "b")
    started = {copy.buffer: copy.start for copy in schedule.copies if copy.number}
    assert started == {index["a"]: event["t2"], index["b"]: event["t4"]}  # `z` begins four seconds after `t2`
    assert schedule.stall_seconds == 0
