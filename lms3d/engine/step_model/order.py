"""Orders of a step beside the traced one. No TensorFlow here.

`branch_ends_first` gives the order of a planned step: branches that only end in a weight run first. A traced training step
computes the gradient of a convolution's input before the gradient of its filter, and updates all weights at the very end. So the
convolution's input stays alive for the filter gradient, and every weight gradient stays alive for its update. Both end a branch:
no convolution or matrix product needs their results. Such ops run as soon as they can. Constants go first, because a constant
that is traced just before its reader would hold the reader back. With isensee2017 this takes a quarter off the smallest peak.

`ready_first` is nearer to what TensorFlow does with a step that has no plan. All ops that wait for nothing are ready when the step
begins. So a kernel that is transposed, split or padded for the last layer is in memory from then on, although it was traced just
before that layer. Validation with isensee2017 at 64^3 takes 5 % more memory than in the traced order.
"""

from __future__ import annotations

from lms3d.engine.ir import Op, StepGraph, producer_name, topological


def branch_ends_first(graph: StepGraph) -> StepGraph:
    """The same step; ops that no later convolution or matrix product depends on go first."""
    feeding = _feeding(graph)
    return graph.with_ops(
        topological(graph.ops, urgent=lambda op: not op.in_loop and (op.name not in feeding or _is_constant(op)))
    )


def ready_first(graph: StepGraph) -> StepGraph:
    """The same step; ops that wait for no convolution, matrix product or loop go first."""
    late: set[str] = set()
    for op in graph.ops:
        before = (*map(producer_name, op.inputs), *op.control_inputs)
        if op.in_loop or op.flops or not late.isdisjoint(before):
            late.add(op.name)
    return graph.with_ops(topological(graph.ops, urgent=lambda op: op.name not in late))


def _feeding(graph: StepGraph) -> set[str]:
    """The ops whose results some convolution or matrix product depends on, by data."""
    feeding: set[str] = set()
    for op in reversed(graph.ops):
        if op.in_loop or op.flops or op.name in feeding:
            feeding.update(producer_name(t) for t in op.inputs)
    return feeding


def _is_constant(op: Op) -> bool:
    """Whether an op is a constant that waits for nothing. It takes no memory of the step."""
    return op.type == "Const" and not op.control_inputs
