"""`stream.check` and the comparison with the plan find each edge that a rewritten graph lacks, or must not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import tensorflow as tf

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph
from lms3d.engine.passes import stream
from lms3d.engine.passes.rewrite import _verify
from lms3d.engine.plan import SCOPE, Plan
from lms3d.engine.planners import tflms
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions, surgery
from lms3d.engine.tensorflow.capture import capture
from tests.lms3d.engine.tensorflow.test_random_functions import SPEC, function_of
from tests.lms3d.engine.tiers.slow import slow_tier
from tests.lms3d.engine.traced import rewrite

NETWORK = ([(name, 1) for name in ("convolution", "tanh", "relu") * 4] + [("add", 1, 12), ("multiply", 1, 9)], True)


@dataclass
class Checked:
    function: Any
    plan: Plan
    expected: StepGraph
    tier: Any

    def op(self, name: str) -> tf.Operation:
        return self.function.graph.get_operation_by_name(name)

    def complaint(self) -> str:
        """The complaint of either check; "" if all is as planned."""
        try:
            _verify(self.function, self.expected, self.plan)
            stream.check(self.function.graph, self.plan, self.expected, late=True)
        except (RuntimeError, ValueError) as error:
            return str(error)
        return ""

    def without(self, op: tf.Operation, before: tf.Operation) -> str:
        """The complaint about a graph that lacks this edge."""
        all_of_them = list(op.control_inputs)
        surgery.set_control_inputs(op, [one for one in all_of_them if one != before])
        try:
            return self.complaint()
        finally:
            surgery.set_control_inputs(op, all_of_them)

    def with_edge(self, op: tf.Operation, before: tf.Operation) -> str:
        all_of_them = list(op.control_inputs)
        surgery.add_control_inputs(op, [before])
        try:
            return self.complaint()
        finally:
            surgery.set_control_inputs(op, all_of_them)

    def reading(self, op: tf.Operation, tensor: tf.Tensor) -> str:
        before = op.inputs[0]
        surgery.set_input(op, 0, tensor)
        try:
            return self.complaint()
        finally:
            surgery.set_input(op, 0, before)


def by_hybrid(graph: StepGraph) -> Plan:
    slow = Machine(swap_out_bytes_per_second=1e9, swap_in_bytes_per_second=1e9)
    _, report = make_plan(Settings(limit_bytes=1 << 40).request(graph, slow))
    return make_plan(Settings(limit_bytes=report.floor_bytes).request(graph, slow))[0]


def by_tflms(graph: StepGraph) -> Plan:
    return tflms.build(graph, tflms.Parameters(swapout_threshold=2, swapin_ahead=2, swapin_groupby=3, sync_mode=3))


@pytest.fixture(scope="module", params=[by_hybrid, by_tflms])
def checked(request):
    original = functions.trace(function_of(NETWORK), SPEC)
    graph = capture(original)
    plan, tier = request.param(graph), slow_tier()()
    assert len(plan.swap_outs) >= 2
    rewrite(original, graph, plan, tier)
    yield Checked(original, plan, edit.apply(graph, plan), tier)
    tier.close()


def test_nothing_is_amiss(checked):
    assert checked.complaint() == ""


def test_each_edge_that_is_missing_is_named(checked):
    operations = checked.function.graph.get_operations()
    edges = [(op, before) for op in operations for before in op.control_inputs]
    of_ours = [(op, before) for op, before in edges if op.name.startswith(SCOPE) or before.name.startswith(SCOPE)]
    assert len(of_ours) >= 3 * len(checked.plan.swap_outs)
    for op, before in of_ours:
        complaint = checked.without(op, before)
        assert all(name.removesuffix("/buffer") in complaint for name in (op.name, before.name)), (
            f"{before.name} -> {op.name}: {complaint!r}"
        )
    assert checked.complaint() == ""


def test_waits_that_must_not_be(checked):
    out, back = checked.plan.swap_outs[0], checked.plan.swap_ins[0]
    first = checked.function.graph.get_operations()[0]
    assert f"made {out.name!r} wait for {first.name!r}" in checked.with_edge(checked.op(out.name), first)
    fetch = f"{back.name}/buffer"
    assert f"made {fetch!r} wait for {first.name!r}, which its plan" in checked.with_edge(checked.op(fetch), first)


def test_each_reads_what_it_must(checked):
    out, back = checked.plan.swap_outs[0], checked.plan.swap_ins[0]
    original = checked.function.graph.get_tensor_by_name(back.tensor)
    other = checked.function.graph.get_tensor_by_name(checked.plan.swap_outs[1].tensor)
    found = [
        checked.reading(checked.op(name), tensor)
        for name, tensor in ((back.name, original), (f"{back.name}/buffer", checked.op(checked.plan.swap_outs[1].name).outputs[0]))
    ] + [checked.reading(checked.op(name), other) for name in (out.name, out.hold)]  # fmt: skip
    assert all(" instead of " in one or "there is a cycle" in one for one in found), found
