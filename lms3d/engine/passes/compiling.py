"""Chains of small ops -> programs that XLA compiles: fewer reads and writes of memory, fewer tensors kept for gradients.

    conv --> Mean --> Sub --> Mul --> AddV2 --> LeakyRelu --> conv      before
    conv --> compiled/LeakyRelu --> conv                                after

COMPILE-1  A program consists of ops that make each element from elements in its place, sums along axes, and views. Their shapes
           are known, they have no effects, and their tensors hold floating-point numbers or booleans. Ops in which XLA loses a NaN
           are left out: Max, Min, Maximum and Minimum of two tensors, and the gradients of ReLU and ReLU6, which XLA masks. A
           program waits for the ops that its ops waited for, and whoever waited for one of them waits for the program.
COMPILE-2  A program is taken if it takes no more time than its ops one by one, does not raise the peak of the step, and clearly
           saves time, bytes of the peak, or bytes that are kept for it.
COMPILE-3  Chains are first tried with sums, then without if they were not taken: XLA's sums are slow on some processors.
COMPILE-4  The edit can be taken back (`edits`), since slabs need ops that have rules. A function that is compiled again gets the
           programs that it had.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import tensorflow as tf

from lms3d.engine import fusion, tuning
from lms3d.engine.fusion import ELEMENTWISE, REDUCTION, VIEW, Fusible, Program
from lms3d.engine.ir import StepGraph
from lms3d.engine.liveness import peak_bytes
from lms3d.engine.passes.base import (
    Function,
    Pass,
    Returned,
    require_returned,
    require_unplanned,
    require_whole,
    returned,
)
from lms3d.engine.passes.edits import Edits
from lms3d.engine.prediction import Compiled
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.capture import argument, capture, is_argument, on_device, runs_once, traced_order, wanted
from lms3d.engine.tensorflow.programs import Costs, Pair, ProgramCandidate

log = logging.getLogger("lms3d")


def _kinds(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


KINDS = {
    **_kinds(
        ELEMENTWISE,
        """
        Abs Add AddN AddV2 BiasAdd BroadcastTo Cast ClipByValue DivNoNan Elu EluGrad Equal Erf Erfc Exp Expm1 Fill
        Greater GreaterEqual IsFinite IsInf IsNan LeakyRelu LeakyReluGrad Less LessEqual Log Log1p LogicalAnd
        LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg NotEqual OnesLike Pow RealDiv Reciprocal ReciprocalGrad
        Relu Relu6 Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Softplus
        SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad Tile Xdivy Xlog1py
        Xlogy ZerosLike
        """,
    ),
    **_kinds(REDUCTION, "BiasAddGrad LogSoftmax Mean Prod Softmax Sum"),
    **_kinds(VIEW, "ExpandDims Identity PreventGradient Reshape Squeeze StopGradient"),
}
_WITH_A_CONSTANT = frozenset({"Maximum", "Minimum"})  # of two tensors XLA loses a NaN in the second one
_DTYPES = frozenset({tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.bool})
_ROUNDS = (frozenset({ELEMENTWISE, REDUCTION, VIEW}), frozenset({ELEMENTWISE, VIEW}))  # COMPILE-3


class Compile(Pass):
    """Requires a step as traced, without a plan. Ensures equal results, to rounding, of the same shapes and types, that the step's
    effects stay, and that no op runs beside the program in its place.

    device: the compute device. most_bytes: the most that a measurement may take (`programs.Costs`).
    """

    name = "compile"

    def __init__(self, device: str = "CPU:0", most_bytes: int = 1 << 62) -> None:
        self.device, self.most_bytes = device, most_bytes
        self.made = Compilation()
        self._returned: Returned = []
        self._effects: list[tf.Operation] = []

    def requires(self, function: Function) -> None:
        require_unplanned(self, function)
        require_whole(self, function)
        self._returned = returned(function)
        self._effects = list(function.graph.control_outputs)

    def run(self, function: Function) -> bool:
        self.made = compile_step(function, device=self.device, most_bytes=self.most_bytes)
        return self.made.changed

    def ensures(self, function: Function) -> None:
        require_returned(self, function, self._returned)
        alive = {op.name for op in traced_order(function.graph)}
        if twice := next((name for name in self.made.replaced if name in alive), None):
            raise RuntimeError(f"pass {self.name}: {twice!r} runs beside its program; please report this graph")
        if lost := next((op for op in self._effects if op not in function.graph.control_outputs), None):
            raise RuntimeError(f"pass {self.name}: {lost.name!r} no longer runs; please report this graph")

    def __str__(self) -> str:
        return f"{self.name}: {len(self.made.compiled)} programs"


@dataclass
class Compilation:
    """The programs of a step, and the edits that brought them into its graph.

    replaced: the ops in whose place they run. saved_bytes: by how much they lower the peak of the step without a plan. edits: None
    if there are no programs yet.
    """

    compiled: list[Compiled] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    saved_bytes: int = 0
    edits: Edits | None = field(default=None, repr=False)

    @property
    def changed(self) -> bool:
        return bool(self.compiled)


def compile_step(function: Function, *, device: str = "CPU:0", most_bytes: int = 1 << 62) -> Compilation:
    """Edits the graph of `function`; the graph keeps the outcome, for a second call (COMPILE-4)."""
    graph = function.graph
    earlier: Compilation | None = getattr(graph, "lms3d_compilation", None)
    if earlier is not None and earlier.edits is not None:
        earlier.edits.redo()
        return earlier
    edits = Edits(graph)
    made = graph.lms3d_compilation = Compilation(edits=edits)
    costs = Costs(device, most_bytes)
    step = capture(function, compute_device=device)
    before = peak_bytes(step)
    workspaces: dict[str, int] = {}
    for kinds in _ROUNDS:
        fusible, folded = _fusible(graph, step, kinds, device)
        decided = list(_decided(graph, step, fusible, folded, costs))[::-1]  # now in the order in which they run
        made.compiled += [_compiled(step, candidate.program, pair) for candidate, pair in decided]
        made.replaced.update(*(candidate.program.replaced for candidate, _ in decided))
        called = _carry_out(graph, [candidate for candidate, _ in decided], edits)
        for call, (_, pair) in zip(called, decided, strict=True):
            workspaces[call.name] = pair.workspace_bytes
            costs.keep(call, pair)
        step = _with_workspaces(capture(function, compute_device=device), workspaces)
    made.saved_bytes = before - peak_bytes(step)
    log.info("lms: %d programs compiled, %d measured", len(made.compiled), costs.measured)
    return made


def _with_workspaces(step: StepGraph, workspaces: Mapping[str, int]) -> StepGraph:
    """The step with the workspaces of its programs. workspaces: name of a program -> bytes."""
    ops = (replace(op, workspace_bytes=workspaces.get(op.name, op.workspace_bytes)) for op in step.ops)
    return step.with_ops(tuple(ops))


def _compiled(step: StepGraph, program: Program, pair: Pair) -> Compiled:
    """The report's line about a program."""
    gone = program.replaced
    returned = sum(step.tensors[t].bytes or 0 for t in program.outputs)
    return Compiled(
        name=program.name,
        ops=len(gone),
        seconds_saved=pair.plain_seconds - pair.seconds,
        unwritten_bytes=fusion.written(step, gone) - returned,
    )


# -- what may be compiled ------------------------------------------------------------------------------------------------


def _fusible(
    graph: tf.Graph, step: StepGraph, kinds: Collection[str], device: str
) -> tuple[Fusible, dict[str, np.ndarray]]:
    """COMPILE-1, and the values of what is folded."""
    folded: dict[str, np.ndarray] = {}
    found: dict[str, str] = {}
    last = {op.name for op in graph.control_outputs}
    for name in step.by_name:
        op = graph.get_operation_by_name(name)
        if KINDS.get(op.type) in kinds and name not in last and _may_compile(op, device):
            constants = {t.name: _constant(t) for t in op.inputs}
            folds = [constants[t.name] is not None for t in op.inputs]
            loses_nan = op.type in _WITH_A_CONSTANT and not any(folds)
            if not loses_nan and all(fold or _is_data(t) for fold, t in zip(folds, op.inputs, strict=True)):
                found[name] = KINDS[op.type]
                folded |= {n: value for n, value in constants.items() if value is not None}
    return Fusible(kinds=found, folded=frozenset(folded)), folded


def _may_compile(op: tf.Operation, device: str) -> bool:
    alone = runs_once(op) or reading.in_loop(op) or not on_device(op, device)
    return not alone and all(map(_is_data, op.outputs))


def _is_data(tensor: tf.Tensor) -> bool:
    return tensor.dtype in _DTYPES and tensor.shape.is_fully_defined()


def _constant(tensor: tf.Tensor) -> np.ndarray | None:
    """The value of an argument or small constant; None for a tensor that a program gets as an input."""
    if is_argument(tensor):
        return argument(tensor)
    small = tensor.op.type == "Const" and (tensor.shape.num_elements() or 0) <= tuning.FOLDED_ELEMENTS
    return np.asarray(tf.get_static_value(tensor)) if small else None


# -- what is worth it ----------------------------------------------------------------------------------------------------


def _decided(
    graph: tf.Graph, step: StepGraph, fusible: Fusible, folded: dict[str, np.ndarray], costs: Costs
) -> Iterator[tuple[ProgramCandidate, Pair]]:
    """The programs to take, from the end of the step to its beginning (FUSION-4)."""
    names, peak = wanted(graph), peak_bytes(step)
    least = max(tuning.PROGRAM_BYTES, int(tuning.PROGRAM_SHARE * fusion.moved(step, step.by_name)))
    for group in fusion.groups(step, fusible):
        alive = [name for name in group if name in step.by_name]
        program = fusion.program(step, alive, fusible) if fusion.moved(step, alive) >= least else None
        for form in _forms(program):
            candidate = ProgramCandidate(graph, form, folded)
            pair = costs.pair(candidate)
            if pair is None or pair.seconds > pair.plain_seconds:
                continue
            after = fusion.contracted(step, form, names, workspace_bytes=pair.workspace_bytes)
            growth = peak_bytes(after) - peak
            if pays(pair, growth, form.saved_bytes):
                step, peak = after, peak + growth
                yield candidate, pair
                break


def _forms(program: Program | None) -> list[Program]:
    """A program, and the same one without the ops that it computes again, if those cost too much time."""
    if program is None:
        return []
    return [program, program.without_rematerialisation()] if program.rematerialised else [program]


def pays(pair: Pair, peak_growth: int, saved_bytes: int) -> bool:
    """Whether a program is taken (COMPILE-2). saved_bytes: see `fusion.Program`."""
    if pair.seconds > pair.plain_seconds or peak_growth > 0:
        return False
    return pair.seconds <= tuning.PROGRAM_GAIN * pair.plain_seconds or peak_growth < 0 or saved_bytes > 0


# -- the edit ------------------------------------------------------------------------------------------------------------


def _carry_out(graph: tf.Graph, candidates: Sequence[ProgramCandidate], edits: Edits) -> list[tf.Operation]:
    """Makes the ops that call the programs, and returns them. candidates: in the order in which they run."""
    if not candidates:
        return []
    before, _ = reading.slices_of(graph)
    order = dict(before) or {op.name: ((i, 0.0, 0), False) for i, op in enumerate(graph.get_operations())}
    called: list[tf.Operation] = []
    call_of: dict[str, tf.Operation] = {}  # op that is gone -> the call in its place
    stands_for: dict[str, tf.Tensor] = {}
    for candidate in candidates:
        program, first = candidate.program, graph.get_operation_by_name(candidate.program.ops[0])
        inputs = [stands_for[n] if n in stands_for else graph.get_tensor_by_name(n) for n in program.inputs]
        waits = [call_of.get(name) or graph.get_operation_by_name(name) for name in program.control_inputs]
        with surgery.insertion(graph, first.device or None, waits):
            outputs = candidate.compiled.call(inputs, program.name)
        called.append(outputs[0].op)
        call_of |= dict.fromkeys(program.replaced, outputs[0].op)
        stands_for |= dict(zip(program.outputs, outputs, strict=True))
        order[outputs[0].op.name] = (order[first.name][0], True)
        _redirect(graph, program, outputs, edits)
    _wait_for_programs(graph, call_of, edits)
    edits.make(partial(surgery.remember_slices, graph, order, {}), partial(surgery.remember_slices, graph, before, {}))
    return called


def _redirect(graph: tf.Graph, program: Program, outputs: Sequence[tf.Tensor], edits: Edits) -> None:
    """Lets the readers of the ops' results read the program's, and the function return these."""
    for name, new in zip(program.outputs, outputs, strict=True):
        edits.redirect(graph.get_tensor_by_name(name), new, but=program.replaced)


def _wait_for_programs(graph: tf.Graph, call_of: dict[str, tf.Operation], edits: Edits) -> None:
    """Lets the ops that waited for an op of a program wait for the program; else both would run."""
    for op in graph.get_operations():
        waits = list(op.control_inputs)
        new = list(dict.fromkeys(call_of.get(one.name, one) for one in waits))
        if new != waits and op.name not in call_of:
            edits.make(partial(surgery.set_control_inputs, op, new), partial(surgery.set_control_inputs, op, waits))
