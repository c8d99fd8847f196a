"""The only home of TensorFlow calls that are not public. Checked with TensorFlow 2.21.

Everything here works on a `FuncGraph`, the graph behind a concrete function, and edits it in place.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.client import device_lib
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import atomic_function, concrete_function
from tensorflow.python.framework import config, ops
from tensorflow.python.ops import gen_math_ops, gradients_util, script_ops

_OFF = rewriter_config_pb2.RewriterConfig.OFF
_EXECUTION = None
_ADD_N = gen_math_ops.add_n
_TRACING, _TURNS = threading.Lock(), threading.Lock()
_tracing = 0  # traces under way, one inside the other or in several threads


class RewrittenFunction(concrete_function.ConcreteFunction):
    """A concrete function that always runs under `execution`: the graph optimiser leaves its nodes alone.

    A tier that moves data itself breaks the chain of gradients: what comes back would silently be a constant to a tape
    outside. Nor may two calls overlap, since both would write to the same files: TensorFlow inlines calls from another traced
    function and mixes them, and threads may call at the same time.
    """

    one_at_a_time: threading.Lock
    needed: Any  # its tier, see `needs`

    def _call_flat(self, tensor_inputs: Sequence[tf.Tensor], captured_inputs: Sequence[tf.Tensor]) -> Any:
        if self.needed is not None and not tf.executing_eagerly():
            raise ValueError(
                "a function whose tensors LMS swaps cannot be called from another tf.function: call it eagerly, or "
                "rewrite the outer function"
            )
        if self.needed is not None and gradients_util.PossibleTapeGradientTypes([*tensor_inputs, *captured_inputs]):
            raise ValueError(
                "a GradientTape cannot see through tensors that LMS swaps: take the gradients inside the function, "
                "as a training step does, and rewrite that"
            )
        with execution(), contextlib.nullcontext() if self.needed is None else self._swapping():
            return super()._call_flat(tensor_inputs, captured_inputs)

    @contextlib.contextmanager
    def _swapping(self) -> Iterator[None]:
        """A call through a tier that moves data itself. StorageError where it may have read other bytes than it wrote."""
        with self.one_at_a_time:
            begun = self.needed.begin()
            try:
                yield
            except BaseException:
                self.needed.failed()
                raise
            self.needed.check(begun)


def make_function(function: tf.types.experimental.ConcreteFunction) -> RewrittenFunction:
    """A concrete function that runs the edited graph of `function`; `function` itself still runs what was traced."""
    made = concrete_function.ConcreteFunction.from_func_graph(function.graph, function.function_type, {})
    made.__class__ = RewrittenFunction
    made.one_at_a_time = _turns(function.graph)
    made.needed = getattr(function.graph, "lms3d_needs", lambda: None)()
    return made


def _turns(graph: tf.Graph) -> threading.Lock:
    """The lock of all functions that run this graph: they have the same files."""
    with _TURNS:
        if not hasattr(graph, "lms3d_turns"):
            graph.lms3d_turns = threading.Lock()
        turns: threading.Lock = graph.lms3d_turns
    return turns


def needs(graph: tf.Graph, tier: Any) -> None:
    """Functions that `make_function` makes of `graph` from now on hold a `tiers.base.Tier`, without which they cannot run.

    The graph itself does not: TensorFlow keeps it for ever where a layer has a gradient of its own.
    """
    graph.lms3d_needs = weakref.ref(tier)


def was_differentiated(function: tf.types.experimental.ConcreteFunction) -> bool:
    """True after a tape took gradients of `function` from outside: its graph then also returns what the backward pass needs."""
    return len(function.graph.outputs) > len(function.function_type.flat_outputs)


def set_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Make input `index` of `op` read `tensor`."""
    op._update_input(index, tensor)


def forget(graph: tf.Graph) -> None:
    """Lets go of a traced graph that will neither run nor be differentiated again.

    TensorFlow registers the gradient of each call of a `tf.custom_gradient`, Keras's optimisers among them, under a name of its
    own and for ever; with it the graph would stay in memory. What a graph calls in Python it keeps with the outermost graph.
    """
    outermost = graph
    while (around := getattr(outermost, "outer_graph", None)) is not None:
        outermost = around
    for op in graph.get_operations():
        if op.type == "IdentityN":
            with contextlib.suppress(ValueError):  # it has no such attribute
                ops.gradient_registry._registry.pop(op.get_attr("_gradient_op_type").decode(), None)
        elif op.type in _PYTHON_CALLS:
            with contextlib.suppress(ValueError, AttributeError):
                called = script_ops._py_funcs.get(op.get_attr("token").decode())
                outermost._py_funcs_used_in_graph.remove(called)


_PYTHON_CALLS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def draws_by_itself(graph: tf.Graph) -> bool:
    """Whether an op keeps the state of its random numbers in its kernel (`tf.random.normal` and the like; Keras's seed generators
    are variables). Traced again, such an op begins with its first number."""
    whole = graph.as_graph_def()
    bodies = [whole.node, *(function.node_def for function in whole.library.function)]
    return any("seed2" in node.attr and not node.op.startswith("Stateless") for body in bodies for node in body)


def add_control_inputs(op: tf.Operation, before: Iterable[tf.Operation]) -> None:
    """Make `op` wait for the ops of `before`."""
    op._add_control_inputs(list(before))


def set_control_inputs(op: tf.Operation, before: Iterable[tf.Operation]) -> None:
    """Make `op` wait for the ops of `before` and, but for its inputs, for no other."""
    op._remove_all_control_inputs()
    op._add_control_inputs(list(before))


ControlInputs: TypeAlias = dict[tf.Operation, list[tf.Operation]]


def control_inputs(graph: tf.Graph) -> ControlInputs:
    """What each op waits for beside its inputs, for `restore_control_inputs`."""
    return {op: list(op.control_inputs) for op in graph.get_operations()}


def restore_control_inputs(before: ControlInputs) -> None:
    """Make the ops wait for what they waited for then. Ops that were made since are left alone."""
    for op, waits in before.items():
        if op.control_inputs != waits:
            set_control_inputs(op, waits)


def in_loop(op: tf.Operation) -> bool:
    """True for ops of a control-flow frame (TensorFlow 1 while loops and conds), which must not be touched."""
    return op._get_control_flow_context() is not None or op.type in _FRAME_TYPES


_FRAME_TYPES = frozenset({"Enter", "Exit", "NextIteration", "Switch", "Merge", "LoopCond", "RefEnter", "RefExit"})


def branches(op: tf.Operation) -> dict[str, tf.Graph]:
    """Attribute -> graph of each function that an If chooses from; its inputs are those of the If but the first. Empty for others.

    An edit has no effect before `set_branch`.
    """
    if op.type not in ("If", "StatelessIf"):
        return {}
    found = {name: op.graph._get_function(op.get_attr(name).name) for name in ("then_branch", "else_branch")}
    return {attribute: function.graph for attribute, function in found.items() if function is not None}


def set_branch(op: tf.Operation, attribute: str, branch: tf.Graph) -> None:
    """Make an If call the edited graph of one of its `branches`."""
    name = f"{op.get_attr(attribute).name}_{ops.uid()}"
    op.graph._add_function_recursive(atomic_function.from_func_graph(name, branch, {}))
    op._set_func_attr(attribute, name)


def is_stateful(op: tf.Operation) -> bool:
    """True for ops that read or write variables, draw random numbers or do I/O."""
    definition = op.op_def
    return definition is None or definition.is_stateful


def replay(ops: Sequence[tf.Operation], given: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Make copies of `ops` in the graph that is being traced; given: what stands for tensors that they read, by name.

    Returns these and the tensors of the copies, by the names of their originals.
    """
    tensors, graph = dict(given), tf.compat.v1.get_default_graph()
    for op in ops:
        attributes = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
        inputs, dtypes = [tensors[t.name] for t in op.inputs], [t.dtype for t in op.outputs]
        made = graph._create_op_internal(op.type, inputs, dtypes, attrs=attributes, op_def=op.op_def)
        for old, new in zip(op.outputs, made.outputs, strict=True):
            new.set_shape(old.shape)
            tensors[old.name] = new
    return tensors


class XlaProgram:
    """A function that XLA compiles as one, wherever `call` calls it.

    name: equal for equal functions, so that a process compiles each once, however often a step is traced.
    """

    def __init__(self, body: tf.types.experimental.ConcreteFunction) -> None:
        self.name = f"lms_program_{digest(body)}"
        self.dtypes = [t.dtype for t in body.graph.outputs]
        self.shapes = [t.shape for t in body.graph.outputs]
        with _TURNS:
            if self.name not in _PROGRAMS:
                _PROGRAMS[self.name] = atomic_function.from_func_graph(self.name, body.graph, {})

    def call(self, inputs: Sequence[tf.Tensor], name: str | None = None) -> list[tf.Tensor]:
        """Its results, by an op in the graph that is being traced or edited."""
        graph = tf.compat.v1.get_default_graph()
        graph._add_function_recursive(_PROGRAMS[self.name])
        attributes = {
            "f": tf.compat.v1.AttrValue(func=tf.compat.v1.NameAttrList(name=self.name)),
            "Tin": _types(t.dtype for t in inputs),
            "Tout": _types(self.dtypes),
            _COMPILED: tf.compat.v1.AttrValue(b=True),
        }
        op = graph._create_op_internal("PartitionedCall", list(inputs), self.dtypes, name=name, attrs=attributes)
        for tensor, shape in zip(op.outputs, self.shapes, strict=True):
            tensor.set_shape(shape)
        return list(op.outputs)


_PROGRAMS: dict[str, atomic_function.AtomicFunction] = {}
_COMPILED = "_XlaMustCompile"


def _types(dtypes: Iterable[tf.DType]) -> tf.compat.v1.AttrValue:
    kinds = [dtype.as_datatype_enum for dtype in dtypes]
    return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(type=kinds))


def digest(function: tf.types.experimental.ConcreteFunction) -> str:
    """A hash of a traced function: equal, in every process, for functions that do the same by the same ops."""
    content = function.graph.as_graph_def().SerializeToString(deterministic=True)
    content += repr([t.name for t in (*function.graph.inputs, *function.graph.outputs)]).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def is_program(op: tf.Operation) -> bool:
    """True for a call of a function without effects that XLA compiles as a whole."""
    return op.type == "PartitionedCall" and _COMPILED in op.node_def.attr and bool(op.get_attr(_COMPILED))


def program_digest(op: tf.Operation) -> str:
    """A hash of what an `is_program` op calls, whatever its name is."""
    definition = copy.deepcopy(op.graph._get_function(op.get_attr("f").name).cached_definition)
    definition.signature.name = ""
    return hashlib.sha256(definition.SerializeToString(deterministic=True)).hexdigest()[:16]


def copy_op(op: tf.Operation, name: str, before: Sequence[tf.Operation]) -> tf.Operation:
    """The same op once more, with the same inputs and attributes, after the ops of `before`."""
    graph = op.graph
    attributes = {key: value for key, value in op.node_def.attr.items() if key != "_class"}
    with (
        graph.as_default(),
        tf.control_dependencies(None),
        tf.control_dependencies(list(before)),
        tf.device(op.device or None),
    ):
        made = graph._create_op_internal(
            op.type, list(op.inputs), [t.dtype for t in op.outputs], name=name, attrs=attributes, op_def=op.op_def
        )
    for old, new in zip(op.outputs, made.outputs, strict=True):
        new.set_shape(old.shape)
    return made


def alone(op: tf.Operation, inputs: Sequence[tf.TensorSpec | np.ndarray], times: int = 1) -> RewrittenFunction:
    """A function that runs `times` copies of `op` in sequence and returns the last one's outputs.

    inputs: for each input of `op` a TensorSpec (an argument), or its constant value. ValueError where the op refuses them.
    """
    specs = [i for i in inputs if isinstance(i, tf.TensorSpec)]
    attributes = {k: value for k, value in op.node_def.attr.items() if k == _COMPILED or not k.startswith("_")}
    dtypes = [t.dtype for t in op.outputs]

    def run(*passed: tf.Tensor) -> list[tf.Tensor]:
        left, graph = iter(passed), tf.compat.v1.get_default_graph()
        given = [next(left) if isinstance(i, tf.TensorSpec) else tf.constant(i) for i in inputs]
        if is_program(op):
            graph._add_function_recursive(op.graph._get_function(op.get_attr("f").name))
        copies: list[tf.Operation] = []
        for _ in range(times):
            with tf.control_dependencies(copies[-1:]):
                copies.append(graph._create_op_internal(op.type, given, dtypes, attrs=attributes, op_def=op.op_def))
        return list(copies[-1].outputs)

    return make_function(trace(run, *specs))


@contextlib.contextmanager
def insertion(graph: tf.Graph, device: str | None, before: Sequence[tf.Operation] = ()) -> Iterator[None]:
    """Ops that are made in the block go to `graph` on `device` and wait for the ops of `before`."""
    with graph.as_default(), tf.control_dependencies(None), tf.control_dependencies(list(before)), tf.device(device):
        yield


def fix_shapes(graph: tf.Graph) -> None:
    """Replace ShapeN by constants where shapes are known: it waits for the last of its tensors and keeps the others alive."""
    for op in graph.get_operations():
        if op.type != "ShapeN" or len(op.inputs) == 1 or in_loop(op):
            continue
        for source, shape in zip(op.inputs, op.outputs, strict=True):
            readers = shape.consumers()
            if not readers or not source.shape.is_fully_defined():
                continue
            with insertion(graph, op.device or None):
                known = tf.constant(source.shape.as_list(), shape.dtype)
            for reader in readers:
                for i, read in enumerate(reader.inputs):
                    if read is shape:
                        set_input(reader, i, known)


def pass_identities(graph: tf.Graph) -> int:
    """Let who reads an identity of several tensors read these themselves; returns how many inputs. Custom gradients leave such an
    op behind; it runs when the last of its inputs is there, and keeps the others alive until then.
    """
    count = 0
    for op in graph.get_operations():
        if op.type != "IdentityN" or len(op.inputs) == 1 or in_loop(op):
            continue
        for source, alias in zip(op.inputs, op.outputs, strict=True):
            for reader in alias.consumers():
                for i, read in enumerate(reader.inputs):
                    if read is alias:
                        set_input(reader, i, source)
                        count += 1
    return count


def remember_slices(graph: tf.Graph, order: Mapping[str, Any], group: Mapping[str, str]) -> None:
    """order: op -> its place; group: op -> the op of the trace that it is a slab of. The graph keeps them for `slices_of`."""
    graph.lms3d_slices = (dict(order), dict(group))


def slices_of(graph: tf.Graph) -> tuple[dict[str, Any], dict[str, str]]:
    """What `remember_slices` was given; empty for a graph that is whole."""
    return getattr(graph, "lms3d_slices", ({}, {}))


def replace_outputs(graph: tf.Graph, stands_for: Mapping[str, tf.Tensor]) -> None:
    """Make the function of `graph` return other tensors; by the names of those that it returned."""

    def new(tensor: Any) -> Any:
        return stands_for.get(tensor.name, tensor) if isinstance(tensor, tf.Tensor) else tensor

    graph.outputs = [new(t) for t in graph.outputs]
    graph.structured_outputs = tf.nest.map_structure(new, graph.structured_outputs, expand_composites=False)


def keep(op: tf.Operation) -> None:
    """Forbid the graph optimiser to remove or merge `op`."""
    op._set_attr("_grappler_do_not_remove", tf.compat.v1.AttrValue(b=True))


def _execution_options() -> config_pb2.ConfigProto:
    """Turns off graph optimisers that would undo a rewrite: they remove identities, merge recomputed ops, move ops. And the folding
    of constants, which multiplies these first, c·(x·(d·y)) as x·((c·d)·y), unless a plan's node lies between. And the layout
    optimiser: on a GPU it puts full-size transpositions around every float32 3D convolution. On an H200 a step of isensee2017 at
    192^3 takes 1.418 s with it and 0.232 s without.
    """
    rewriting = rewriter_config_pb2.RewriterConfig(
        dependency_optimization=_OFF,
        arithmetic_optimization=_OFF,
        constant_folding=_OFF,
        common_subgraph_elimination=_OFF,
        memory_optimization=rewriter_config_pb2.RewriterConfig.NO_MEM_OPT,
        scoped_allocator_optimization=_OFF,
        auto_mixed_precision=_OFF,
        loop_optimization=_OFF,
        remapping=_OFF,
        layout_optimizer=_OFF,
        meta_optimizer_iterations=rewriter_config_pb2.RewriterConfig.ONE,
    )
    options = config_pb2.GraphOptions(rewrite_options=rewriting)
    return config_pb2.ConfigProto(graph_options=options, allow_soft_placement=True)


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(config.is_op_determinism_enabled())


def gpu_buses() -> dict[int, str]:
    """Number of a GPU -> its PCI bus id, which TensorFlow tells in prose only."""
    described = (d.physical_device_desc for d in device_lib.list_local_devices() if d.device_type == "GPU")
    found = (re.search(r"device: (\d+),.*pci bus id: ([0-9a-fA-F:.]+)", text) for text in described)
    return {int(match.group(1)): match.group(2) for match in found if match}


@contextlib.contextmanager
def execution() -> Iterator[None]:
    """Functions called in the block are optimised with `_execution_options`; others keep TensorFlow's defaults."""
    global _EXECUTION
    if _EXECUTION is None:
        _EXECUTION = eager_context.FunctionCallOptions(config_proto=_execution_options())
    context = eager_context.context()
    before = context.function_call_options
    context.function_call_options = _EXECUTION
    try:
        yield
    finally:
        context.function_call_options = before


def captured_bytes(function: tf.types.experimental.ConcreteFunction) -> int:
    """Bytes of the variables and tensors that a concrete function holds from outside: weights, slots, constants."""
    seen: dict[int, int] = {}
    for variable in function.graph.variables:
        seen[id(variable)] = variable.shape.num_elements() * variable.dtype.size
    for tensor in function.captured_inputs:
        sized = tensor.dtype not in (tf.resource, tf.variant, tf.string) and tensor.shape.is_fully_defined()
        if sized:
            seen[id(tensor)] = tensor.shape.num_elements() * tensor.dtype.size
    return sum(seen.values())


Trace = Callable[..., Any]


def trace(function: Trace, *specs: Any) -> tf.types.experimental.ConcreteFunction:
    """Trace `function` once for these specs: no autograph, no XLA, so that every op stays visible."""
    with _sums_in_order():
        return tf.function(function, autograph=False, jit_compile=False).get_concrete_function(*specs)


@contextlib.contextmanager
def _sums_in_order() -> Iterator[None]:
    """Sums of three gradients or more are traced as additions of two, from the first to the last.

    The kernel of AddN begins with an input that has no other reader left, and writes into it: the last bits of its sum
    depend on the order in which other ops happened to run. Additions of two give its result where that input is the first.
    """
    global _tracing
    with _TRACING:
        _tracing += 1
        gen_math_ops.add_n = _add_in_order
    try:
        yield
    finally:
        with _TRACING:
            _tracing -= 1
            if _tracing == 0:
                gen_math_ops.add_n = _ADD_N


def _add_in_order(inputs: Sequence[tf.Tensor], name: str | None = None) -> tf.Tensor:
    # AddV2 would broadcast where AddN refuses, and knows no lists of tensors.
    plain = all(t.dtype != tf.variant and t.shape.is_fully_defined() and t.shape == inputs[0].shape for t in inputs)
    if len(inputs) < 3 or not plain:
        return _ADD_N(inputs, name=name)
    total = inputs[0]
    for other in inputs[1:-1]:
        total = gen_math_ops.add_v2(total, other)
    return gen_math_ops.add_v2(total, inputs[-1], name=name)
