"""A tensor that comes back twice in a step: read back from the tier once, and computed again once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tensorflow as tf

from lms3d.engine import edit, tuning
from lms3d.engine.cost import Machine
from lms3d.engine.planners.hybrid import local_search
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model import emit, fit
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Problem, reduce
from lms3d.engine.step_model.schedule import Schedule, build
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step
from tests.lms3d.engine.traced import batch, fork, rewrite, same_bits

LARGE = tf.TensorSpec((512, 64), tf.float32)  # more than a crumb


def two_gaps(*, first: int = 9, second: int = 9, mib: float = 4):
    """`a` costs a second, and is read after a short and after a long while. Its inputs are gone by the second time."""
    return step(
        placeholder(mib=0.1),
        op("p", "x", mib=1, flops=60),
        op("a", "p", mib=mib, flops=1),
        *[op(f"f{i}", f"f{i - 1}" if i else "a", mib=0.25, flops=1) for i in range(first)],
        op("big", f"f{first - 1}", mib=mib, flops=1),
        op("small", "big", mib=0.25, flops=1),
        op("r", "small", "a", "p", mib=0.25, flops=1),
        *[op(f"g{i}", f"g{i - 1}" if i else "r", mib=0.25, flops=4) for i in range(second)],
        op("bigger", f"g{second - 1}", mib=mib + 1, flops=1),
        op("smaller", "bigger", mib=0.25, flops=1),
        op("wait", "smaller", mib=0.25, flops=6),
        op("z", "wait", "a", mib=0.25, flops=1),
    )


def index(problem: Problem, root: str) -> int:
    return [b.root for b in problem.buffers].index(root)


def scheduled(machine: Machine) -> tuple[Problem, dict[int, Choice], Schedule]:
    problem = reduce(two_gaps(), machine)
    a = index(problem, "a:0")
    choices = {a: Choice(Mode.SWAP, recompute_at=(problem.anchors.index("r"),))}
    return problem, choices, build(problem, choices, machine)


@pytest.mark.parametrize("machine", [SECONDS, replace(SECONDS, mapped=True)])
def test_the_first_copy_is_computed_and_the_second_read_back(machine):
    problem, choices, schedule = scheduled(machine)
    a = index(problem, "a:0")
    copies = sorted((c for c in schedule.copies if c.buffer == a), key=lambda c: c.number)
    assert [c.mode for c in copies] == [Mode.KEEP, Mode.RECOMPUTE, Mode.SWAP]
    assert [c.bytes for c in copies] == [4 * MIB, 4 * MIB, 0 if machine.mapped else 4 * MIB]
    solution = fit.Solution(problem, choices, schedule, 1, schedule.peak_bytes, True)
    plan = emit.emit(solution)
    assert [(s.tensor, s.bytes) for s in plan.swap_outs] == [("a:0", 4 * MIB)]
    assert [back.consumers for back in plan.swap_ins] == [("z",)]
    assert [(again.op, again.consumers) for again in plan.recomputes] == [("a", ("r",))]
    edited = edit.apply(problem.graph, plan)
    assert edited.by_name["r"].inputs == ("small:0", "lms/recompute/a:0", "p:0")
    assert edited.by_name["z"].inputs == ("wait:0", "lms/swap_in/a/1:0")
    run = simulate(edited, machine)
    assert run.peak_bytes <= schedule.peak_bytes
    assert run.seconds == pytest.approx(schedule.seconds, rel=0.05)


def test_two_copies_that_begin_with_the_same_event():
    """The call of a mapped swap-in comes ahead, here just when the other copy is computed."""
    mapped = replace(SECONDS, mapped=True)
    chain = [op(f"f{i}", f"f{i - 1}" if i else "a", mib=0.25, flops=9) for i in range(6)]
    graph = step(
        placeholder(mib=0.1),
        op("a", "x", mib=4, flops=1),
        *chain,
        op("r", "f5", "a", mib=0.25, flops=1),
        op("g", "r", mib=0.25, flops=1),
        op("h", "g", mib=0.25, flops=1),
        op("z", "h", "a", mib=0.25, flops=1),
    )
    problem = reduce(graph, mapped)
    choices = {index(problem, "a:0"): Choice(Mode.SWAP, split=1, recompute_at=(problem.anchors.index("r"),))}
    schedule = build(problem, choices, mapped)
    back = [c for c in schedule.copies if c.buffer in choices and c.number]
    assert [c.mode for c in back] == [Mode.RECOMPUTE, Mode.SWAP]
    assert back[0].start == back[1].start
    plan = emit.emit(fit.Solution(problem, choices, schedule, 1, schedule.peak_bytes, True))
    assert [again.consumers for again in plan.recomputes] == [("r",)]
    assert [swap_in.consumers for swap_in in plan.swap_ins] == [("z",)]


def test_only_one_transfer_is_paid_for():
    problem, choices, schedule = scheduled(SECONDS)
    twice = build(problem, {b: Choice(Mode.SWAP) for b in choices}, SECONDS)
    assert twice.transfer_price_seconds == pytest.approx(SECONDS.transfer_price * 12)
    assert schedule.transfer_price_seconds == pytest.approx(SECONDS.transfer_price * 8)


def test_the_planner_does_both_where_that_is_the_cheapest():
    """The step would wait for the first swap-in; computing again costs a second each time, the second swap-in nearly nothing."""
    graph = two_gaps(first=4)
    problem = reduce(graph, SECONDS)
    budget = 6 * MIB
    solution = local_search.solve(problem, int(budget / (1 - tuning.RESERVE)) + 1, SECONDS)
    a, r = index(problem, "a:0"), problem.anchors.index("r")
    assert solution.fits
    assert (solution.choices[a].mode, solution.choices[a].recompute_at) == (Mode.SWAP, (r,))
    away = {index(problem, "p:0"): Choice(Mode.SWAP)}
    others = [build(problem, {**away, a: c}, SECONDS) for c in (Choice(Mode.SWAP), Choice(Mode.RECOMPUTE))]
    assert solution.schedule.cost_seconds < min(s.cost_seconds for s in others)
    _, report = make_plan(Settings(limit_bytes=solution.limit_bytes).request(graph, SECONDS))
    assert {d.tensor: (d.action, d.copies) for d in report.decisions}["a:0"] == ("both", 2)
    assert report.parameters["tensors kept, swapped, recomputed, both"].endswith(", 1")


def test_no_bit_changes(tier):
    """In a real step, too: `a` of `fork` comes back three times."""
    function = functions.trace(fork, LARGE)
    graph = capture(function)
    problem = reduce(graph, SECONDS)
    a = next(b for b, buffer in enumerate(problem.buffers) if buffer.root.startswith("a:"))
    reads = problem.buffers[a].reads
    choices = {a: Choice(Mode.SWAP, split=1, recompute_at=(reads[-2],))}
    schedule = build(problem, choices, SECONDS)
    plan = emit.emit(fit.Solution(problem, choices, schedule, 1, schedule.peak_bytes, True))
    assert (len(plan.swap_ins), len(plan.recomputes)) == (2, 1)
    expected = [functions.trace(fork, LARGE)(batch(seed, LARGE)) for seed in range(3)]
    made, _ = rewrite(function, graph, plan, tier)
    same_bits([made(batch(seed, LARGE)) for seed in range(3)], expected)


def test_an_identity_that_nobody_reads_any_more(tier):
    """Its reader gets a copy of the tensor behind it; the rewrite does not miss it."""

    def through_an_identity(x: tf.Tensor) -> tf.Tensor:
        a = y = tf.tanh(x, name="a")
        for _ in range(8):
            y = tf.sin(y)
        return y + tf.identity(a, name="passed_on")

    function = functions.trace(through_an_identity, LARGE)
    graph = capture(function)
    problem = reduce(graph, SECONDS)
    choices = {index(problem, "a:0"): Choice(Mode.SWAP, split=1)}
    schedule = build(problem, choices, SECONDS)
    plan = emit.emit(fit.Solution(problem, choices, schedule, 1, schedule.peak_bytes, True))
    assert [name for back in plan.swap_ins for _, name in back.through] == ["passed_on:0"]
    expected = functions.trace(through_an_identity, LARGE)(batch(0, LARGE))
    made, _ = rewrite(function, graph, plan, tier)
    same_bits(made(batch(0, LARGE)), expected)


@pytest.mark.parametrize("choice", [Choice(Mode.SWAP, split=1), Choice(Mode.RECOMPUTE, split=1)])
def test_a_reader_of_a_view(tier, choice):
    """It gets a view of the copy."""

    def through_a_view(x: tf.Tensor) -> tf.Tensor:
        a = y = tf.tanh(x, name="a")
        for _ in range(8):
            y = tf.sin(y)
        return y[:256] + tf.slice(a, [256, 0], [256, 64], name="half")

    function = functions.trace(through_a_view, LARGE)
    graph = capture(function)
    assert graph.by_name["half"].view
    problem = reduce(graph, SECONDS)
    choices = {index(problem, "a:0"): choice}
    schedule = build(problem, choices, SECONDS)
    plan = emit.emit(fit.Solution(problem, choices, schedule, 1, schedule.peak_bytes, True))
    copy = "lms/swap_in/a/0:0" if choice.mode is Mode.SWAP else "lms/recompute/a:0"
    assert edit.apply(graph, plan).by_name["lms/recompute/half"].inputs[0] == copy
    expected = functions.trace(through_a_view, LARGE)(batch(0, LARGE))
    made, _ = rewrite(function, graph, plan, tier)
    same_bits(made(batch(0, LARGE)), expected)
