"""Each variable keeps its memory: its update waits for all ops that still read the old value.

A read of a variable shares its memory. TensorFlow updates in place if nothing else holds that memory. If something does, TensorFlow
copies the variable into a new piece, and leaves the old piece behind. Between steps the new piece stays in the middle of memory
that a plan takes for one free piece, and each later step needs more than was planned. A traced graph orders the reads and updates
of a variable, but not the ops that use a read value. A gradient that goes on through a convolution may run late, since small ops
run as soon as they can.

    kernel --> read --> convolution's input gradient ..control..>  kernel -= change

UPDATE-1  Ops that read through identities, reshapes and slices count, too. So do the readers of a large tensor that is made of
          variables and small tensors, such as a kernel's cast or reverse: a plan may make it again, from the old value, just before
          it is read.
UPDATE-2  An op that comes after the update in every order is left alone: it reads the old value once more, and the variable moves.
UPDATE-3  An If waits for the readers of the variables that its branches update, such as Keras's accumulated gradients.
          Updates in a branch wait for their readers, too.
UPDATE-4  No plan orders the ops of a branch. There one variable is updated after the other, or the changes of all would exist at
          once. If that takes more memory, as in a branch that computes gradients, the branch is left alone.
UPDATE-5  What an update alone needs and is made of the old value, such as the kernel times its decay, is not made before the others
          have read that. Else one more copy of all weights would wait from the start of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set

import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.ir import ALIAS_TYPES, RESIDENT_TYPES
from lms3d.engine.liveness import SLICE_TYPES
from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.passes.identities import pass_identities
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.bodies import size
from lms3d.engine.tensorflow.capture import held_bytes, traced_order

_MAY_PASS_ON = ALIAS_TYPES | SLICE_TYPES | {"CheckNumerics", "Transpose"}
_IN_PLACE = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply", "ResourceScatter", "ResourceSparseApply")


class HoldBack(Normalising):
    """Requires a step without a plan. Ensures that each update waits for the readers of the old value, except for UPDATE-2."""

    name = "updates"

    def edit(self, graph: tf.Graph) -> int:
        return hold_back(graph, self.target.compute_device)

    def ensures(self, function: Function) -> None:
        for update, readers in _unheld(function.graph):
            raise RuntimeError(
                f"pass {self.name}: {update.name!r} does not wait for {readers[0].name!r}, which reads the old value; "
                "please report this graph"
            )


def hold_back(graph: tf.Graph, compute_device: str = "CPU:0") -> int:
    """Adds the control edges; returns how many edits it took. Results are unchanged."""
    count = sum(_within_branches(op, compute_device) for op in graph.get_operations())
    for op, readers in list(_early(graph)):
        surgery.add_control_inputs(op, readers)
        count += len(readers)
    return count


def _early(graph: tf.Graph) -> Iterator[tuple[tf.Operation, list[tf.Operation]]]:
    """The updates of a graph that may come too early, and the ops of UPDATE-5, each with the readers of the old value for which it
    does not wait."""
    found = graph.get_operations()
    updates = {op: updated for op in found if not reading.in_loop(op) and (updated := _updated(op))}
    if not updates:
        return
    place = _places(graph, [op.name for op in updates])
    in_order = sorted((op for op in found if op.name in place), key=lambda op: place[op.name])
    holders = _holders(in_order)
    awaited = {control for op in found if op not in updates for control in op.control_inputs}
    earliest = min((place[op.name] for op in updates if op.name in place), default=0)
    readers, own = dict[tf.Operation, list[tf.Operation]](), dict[tf.Operation, set[tf.Operation]]()
    for update, updated in updates.items():
        here = place.get(update.name, 0)
        late = {op: None for handle in updated for op in holders[handle] if place[op.name] < here}
        readers[update] = [op for op in late if not reading.in_loop(op)]
        own[update] = _own(update, {*readers[update]})
    of_updates = set().union(*own.values())
    for update in updates:
        others = [op for op in readers[update] if op not in own[update]]
        waiting = {update: others}
        if own[update].isdisjoint(awaited):
            # No cycle: such a reader comes after no update, and only updates come after these ops.
            before = [op for op in others if op not in of_updates and place[op.name] < earliest]
            waiting |= {op: before for op in own[update] if own[update].isdisjoint(t.op for t in op.inputs)}
        for op, all_before in waiting.items():
            known = {*(t.op for t in op.inputs), *op.control_inputs}
            if waits := [reader for reader in all_before if reader not in known]:
                yield op, waits


def _unheld(graph: tf.Graph) -> Iterator[tuple[tf.Operation, list[tf.Operation]]]:
    """As `_early`, in the graph and in branches."""
    yield from _early(graph)
    for op in graph.get_operations():
        for branch in reading.branches(op).values():
            yield from _unheld(branch)


def _within_branches(op: tf.Operation, compute_device: str) -> int:
    """Edits the branches of an If in the same way, and by UPDATE-4; returns how many edits it took."""
    count = 0
    for attribute, branch in reading.branches(op).items():
        passed = pass_identities(branch)  # that of all gradients would wait for the last of them
        if found := passed + hold_back(branch, compute_device) + _take_turns(branch, compute_device):
            surgery.set_branch(op, attribute, branch)
        count += found
    return count


def _take_turns(branch: tf.Graph, compute_device: str) -> int:
    """UPDATE-4: tensors that one update needs, and no earlier update, are made after the earlier one; returns how many ops wait.

    A branch with ops that wait for other ranks is left alone.
    """
    found = branch.get_operations()
    edges = _turns(found)
    if not edges or any(map(reading.waits_for_ranks, found)):
        return 0
    before, earlier = held_bytes(branch, compute_device), {op: list(op.control_inputs) for op in edges}
    for op, update in edges.items():
        surgery.add_control_inputs(op, [update])
    if held_bytes(branch, compute_device) < before:
        return len(edges)
    for op, waits in earlier.items():
        surgery.set_control_inputs(op, waits)
    return 0


def _turns(found: Sequence[tf.Operation]) -> dict[tf.Operation, tf.Operation]:
    """Op that takes memory -> the update that it is to wait for."""
    edges, done, before = {}, set[tf.Operation](), None
    for op in found:
        if op in done or reading.in_loop(op) or not (_updated(op) or op.type == "AssignVariableOp"):
            continue
        needed = _ancestors(op, done)
        if not any(map(_is_large, needed)):
            continue
        done |= needed
        if before is not None:
            edges.update({one: before for one in needed if _is_large(one) and before not in one.control_inputs})
        before = op
    return edges


def _ancestors(op: tf.Operation, without: Set[tf.Operation]) -> set[tf.Operation]:
    """`op` and all ops that it waits for, except for `without` and the ops behind these."""
    found, left = set[tf.Operation](), [op]
    while left:
        one = left.pop()
        if one not in found and one not in without:
            found.add(one)
            left += [*(t.op for t in one.inputs), *one.control_inputs]
    return found


def _is_large(op: tf.Operation) -> bool:
    """Whether the op takes memory for a large tensor."""
    takes = op.type not in RESIDENT_TYPES and op.type not in ALIAS_TYPES and not reading.in_loop(op)
    return takes and any((size(t) or 0) > CRUMB_BYTES for t in op.outputs)


def _updated(op: tf.Operation) -> set[str]:
    """Names of the handles of the variables that `op` updates in place (UPDATE-3)."""
    if op.type.startswith(_IN_PLACE):
        return {t.name for t in op.inputs if t.dtype == tf.resource}
    found: set[str] = set()
    for branch in reading.branches(op).values():
        within = {handle for inner in branch.get_operations() for handle in _updated(inner)}
        found |= {t.name for t, inner in zip(op.inputs[1:], branch.inputs, strict=True) if inner.name in within}
    return found


def _places(graph: tf.Graph, updates: Sequence[str]) -> dict[str, int]:
    """Op -> its place in an order in which updates come as late as they can, and are among themselves as traced.

    Edges along this order make no cycle. Ops that never run have no place.
    """
    return {op.name: i for i, op in enumerate(traced_order(graph, last=updates))}


def _own(update: tf.Operation, readers: Set[tf.Operation]) -> set[tf.Operation]:
    """The readers that make large tensors for the update alone (UPDATE-5)."""
    own: set[tf.Operation] = set()
    left = [t.op for t in update.inputs]
    while left:
        op = left.pop()
        needed_by = {reader for t in op.outputs for reader in t.consumers()}
        if op in readers and op not in own and _is_large(op) and needed_by <= {update, *own}:
            own.add(op)
            left += [t.op for t in op.inputs]
    return own


def _holders(in_order: Iterable[tf.Operation]) -> dict[str, list[tf.Operation]]:
    """The handle of each variable -> the ops that read its value, or a large tensor that is made of it (UPDATE-1)."""
    holders: dict[str, list[tf.Operation]] = defaultdict(list)
    handles: dict[str, set[str]] = {}  # a tensor -> the variables whose memory it holds, or that it is made of
    for op in in_order:
        if op.type == "ReadVariableOp":
            handles[op.outputs[0].name] = {op.inputs[0].name}
            continue
        held = set().union(*(handles.get(t.name, ()) for t in op.inputs))
        for handle in held:
            holders[handle].append(op)
        alone = all(t.name in handles or _is_at_hand(t) for t in op.inputs) and _is_large(op)
        if held and (op.type in _MAY_PASS_ON or (alone and not reading.is_stateful(op))):
            handles.update((t.name, held) for t in op.outputs)
    return holders


def _is_at_hand(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a constant, or so small that no plan moves it."""
    size_bytes = size(tensor)
    return tensor.op.type == "Const" or (size_bytes is not None and size_bytes <= CRUMB_BYTES)
