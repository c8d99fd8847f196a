"""Functions made, traced and run by calls of TensorFlow that are not public. Checked with TensorFlow 2.21."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import atomic_function, concrete_function
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import gen_math_ops, gradients_util, handle_data_util, script_ops

from lms3d.engine.tensorflow.reading import COMPILED, digest, in_loop, is_program

_OFF = rewriter_config_pb2.RewriterConfig.OFF
_EXECUTION = None
_ADD_N = gen_math_ops.add_n
_TRACING, _TURNS = threading.Lock(), threading.Lock()
_tracing = 0  # traces under way, one inside the other or in several threads

# -- made and run ------------------------------------------------------------------------------------------------------


class RewrittenFunction(concrete_function.ConcreteFunction):
    """A concrete function that always runs under `execution`: the graph optimiser leaves its nodes alone.

    A tier that moves data itself breaks the chain of gradients: to a tape outside, a tensor that comes back would silently be a
    constant. Nor may two calls overlap, since both would write to the same files: TensorFlow inlines calls from another traced
    function and mixes their ops, and threads may call at the same time.
    """

    one_at_a_time: threading.Lock
    needed: Any  # its tier, see `surgery.needs`

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
        """The block is a call through a tier that moves data itself. StorageError if the tier may have read other bytes than it
        wrote."""
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


def _execution_options() -> config_pb2.ConfigProto:
    """Options that turn off graph optimisers.

    Some would undo a rewrite: they remove identities, merge recomputed ops, or move ops. The folding of constants multiplies these
    first, c·(x·(d·y)) as x·((c·d)·y), unless a plan's node lies between. The layout optimiser puts full-size transpositions around
    every float32 3D convolution on a GPU: on an H200 a step of isensee2017 at 192^3 takes 1.418 s with it and 0.232 s without.
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


def forget_gradients(graph: tf.Graph) -> None:
    """After this, nobody can differentiate a traced graph, and TensorFlow holds neither the graph nor its variables any longer.

    TensorFlow registers the gradient of each call of a `tf.custom_gradient`, such as Keras's optimisers make, under a name of its
    own and for ever, and with it the graph. Functions that the graph calls are left alone.
    """
    for op in graph.get_operations():
        if op.type == "IdentityN":
            with contextlib.suppress(ValueError):  # it has no such attribute
                ops.gradient_registry._registry.pop(op.get_attr("_gradient_op_type").decode(), None)


def forget(graph: tf.Graph) -> None:
    """Lets go of a traced graph that will neither run nor be differentiated again.

    TensorFlow also keeps the Python functions that a graph calls, with the outermost graph.
    """
    forget_gradients(graph)
    outermost = graph
    while (around := getattr(outermost, "outer_graph", None)) is not None:
        outermost = around
    for op in graph.get_operations():
        if op.type in _PYTHON_CALLS:
            with contextlib.suppress(ValueError, AttributeError):
                called = script_ops._py_funcs.get(op.get_attr("token").decode())
                outermost._py_funcs_used_in_graph.remove(called)


_PYTHON_CALLS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})

# -- traced ------------------------------------------------------------------------------------------------------------


Trace = Callable[..., Any]


def trace(function: Trace, *specs: Any) -> tf.types.experimental.ConcreteFunction:
    """Trace `function` once for these specs: no autograph, no XLA, so that every op stays visible."""
    with _sums_in_order():
        return tf.function(function, autograph=False, jit_compile=False).get_concrete_function(*specs)


@contextlib.contextmanager
def _sums_in_order() -> Iterator[None]:
    """Sums of three gradients or more are traced as additions of two, from the first to the last.

    The kernel of AddN begins with an input that has no other reader left, and writes into it: the last bits of its sum depend on
    the order in which other ops happened to run. Additions of two give the result that AddN has if that input is the first.
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


# -- copies of ops, in functions of their own --------------------------------------------------------------------------


def copy_ops(
    ops: Sequence[tf.Operation],
    given: Mapping[str, tf.Tensor],
    corrected: Callable[[tf.Operation], Sequence[tf.Tensor]] = lambda made: made.outputs,
) -> dict[str, tf.Tensor]:
    """Copies `ops` into the graph that is being traced. given: name of a tensor that they read -> the tensor to read instead.
    corrected: a copy -> the tensors that others read instead of its outputs.

    Returns name of a tensor -> the tensor that stands for it: the given ones, and the outputs of the copies.
    """
    tensors, graph = dict(given), tf.compat.v1.get_default_graph()
    for op in ops:
        attributes = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
        inputs, dtypes = [tensors[t.name] for t in op.inputs], [t.dtype for t in op.outputs]
        made = graph._create_op_internal(op.type, inputs, dtypes, attrs=attributes, op_def=op.op_def)
        for old, new in zip(op.outputs, made.outputs, strict=True):
            new.set_shape(old.shape)
        tensors |= zip((t.name for t in op.outputs), corrected(made), strict=True)
    return tensors


def alone(op: tf.Operation, inputs: Sequence[tf.TensorSpec | np.ndarray], times: int = 1) -> RewrittenFunction:
    """A function that runs `times` copies of `op` in sequence and returns the last one's outputs.

    inputs: for each input of `op` a TensorSpec (an argument), or its constant value. ValueError if the op refuses them.
    """
    specs = [i for i in inputs if isinstance(i, tf.TensorSpec)]
    attributes = {k: value for k, value in op.node_def.attr.items() if k == COMPILED or not k.startswith("_")}
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


def inferred_shapes(op: tf.Operation) -> list[tf.TensorShape]:
    """The shapes of the outputs of `op` that follow from its inputs. ValueError if TensorFlow refuses them."""
    attributes = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
    values = [tf.get_static_value(t) for t in op.inputs]
    with tf.Graph().as_default() as graph:
        given = [
            tf.compat.v1.placeholder(t.dtype, t.shape) if value is None else tf.constant(value, t.dtype)
            for t, value in zip(op.inputs, values, strict=True)
        ]
        dtypes = [t.dtype for t in op.outputs]
        made = graph._create_op_internal(op.type, given, dtypes, attrs=attributes, op_def=op.op_def)
    return [t.shape for t in made.outputs]


class Copy:
    """A new graph that takes and returns what another function's does, and to which ops are copied one by one.

    inputs: the new graph's inputs, in the order of the given function's.
    """

    def __init__(self, function: tf.types.experimental.ConcreteFunction) -> None:
        self._function, before = function, function.graph
        self.graph = func_graph.FuncGraph(before.name)
        outside = {id(inner): outer for outer, inner in before.captures}
        for inner in before.inputs:
            (made,) = self.add(inner.op, [], [], name=inner.op.name, device=inner.op.device).outputs
            handle_data_util.copy_handle_data(inner, made)
            self.graph.inputs.append(made)
            if id(inner) in outside:
                self.graph.replace_capture(outside[id(inner)], made)
        self.graph.variables = before.variables
        self.inputs = list(self.graph.inputs)

    @staticmethod
    def can(function: tf.types.experimental.ConcreteFunction) -> bool:
        """Whether a function can be copied: it has no frames of TensorFlow 1, and captures nothing anew in each call."""
        frames = any(in_loop(op) for op in function.graph.get_operations())
        return not frames and not function.graph.deferred_external_captures

    @contextlib.contextmanager
    def insertion(self, device: str = "") -> Iterator[None]:
        """Ops that are made in the block go to the new graph, and wait for none but their inputs."""
        with self.graph.as_default(), tf.control_dependencies(None), tf.device(device or None):
            yield

    def add(
        self, op: tf.Operation, inputs: Sequence[tf.Tensor], waits: Sequence[tf.Operation], *, name: str, device: str
    ) -> tf.Operation:
        """A copy of an op of any graph, which reads `inputs`, waits for `waits`, and knows the functions that the op runs."""
        attributes = {key: value for key, value in op.node_def.attr.items() if key != "_class"}
        for value in attributes.values():
            for called in [value.func, *value.list.func]:
                if called.name and (known := op.graph._get_function(called.name)) is not None:
                    self.graph._add_function_recursive(known)
        dtypes = [t.dtype for t in op.outputs]
        with self.insertion(device), tf.control_dependencies(list(waits)):
            made = self.graph._create_op_internal(
                op.type, list(inputs), dtypes, name=name, attrs=attributes, op_def=op.op_def
            )
        for old, new in zip(op.outputs, made.outputs, strict=True):
            new.set_shape(old.shape)
            if old.dtype in (tf.resource, tf.variant):
                handle_data_util.copy_handle_data(old, new)
        return made

    def finished(
        self, outputs: Sequence[tf.Tensor], effects: Sequence[tf.Operation]
    ) -> tf.types.experimental.ConcreteFunction:
        """The function of the new graph. outputs: for each tensor that the given function returns, the one to return."""
        before, graph = self._function.graph, self.graph
        stands_for = {id(old): new for old, new in zip(before.outputs, outputs, strict=True)}
        graph.outputs, graph.control_outputs = list(outputs), list(dict.fromkeys(effects))
        graph.structured_input_signature = before.structured_input_signature
        graph.structured_outputs = tf.nest.map_structure(
            lambda one: stands_for.get(id(one), one), before.structured_outputs, expand_composites=True
        )
        return concrete_function.ConcreteFunction.from_func_graph(graph, self._function.function_type, {})


# -- programs ----------------------------------------------------------------------------------------------------------


class XlaProgram:
    """A function that XLA compiles as a whole.

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
        """The results of the program, by a new op in the graph that is being traced or edited."""
        graph = tf.compat.v1.get_default_graph()
        graph._add_function_recursive(_PROGRAMS[self.name])
        attributes = {
            "f": tf.compat.v1.AttrValue(func=tf.compat.v1.NameAttrList(name=self.name)),
            "Tin": _types(t.dtype for t in inputs),
            "Tout": _types(self.dtypes),
            COMPILED: tf.compat.v1.AttrValue(b=True),
        }
        op = graph._create_op_internal("PartitionedCall", list(inputs), self.dtypes, name=name, attrs=attributes)
        for tensor, shape in zip(op.outputs, self.shapes, strict=True):
            tensor.set_shape(shape)
        return list(op.outputs)


_PROGRAMS: dict[str, atomic_function.AtomicFunction] = {}


def _types(dtypes: Iterable[tf.DType]) -> tf.compat.v1.AttrValue:
    kinds = [dtype.as_datatype_enum for dtype in dtypes]
    return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(type=kinds))
