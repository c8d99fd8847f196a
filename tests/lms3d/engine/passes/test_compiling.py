"""`LMS(compile="auto")`: programs in the place of chains of ops, equal to rounding, and nothing else touched.

What pays is decided by a stopwatch; here it is said (`costs`), so that the same is compiled everywhere.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d import plan, tasks
from lms3d.engine import choosing, plan_cache, tuning
from lms3d.engine.cost import Machine
from lms3d.engine.ir import PROGRAM_TYPE, StepGraph
from lms3d.engine.passes import compiling, manager, updates
from lms3d.engine.passes.compiling import compile_step, pays
from lms3d.engine.prediction import Prediction
from lms3d.engine.request import StepRequest
from lms3d.engine.tensorflow import functions, op_costs, programs, reading, surgery
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tensorflow.programs import Costs, Pair, ProgramCandidate
from lms3d.errors import DoesNotFit, InputError
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.estimate import plan_step
from lms3d.training import needs
from tests.caches import private_cache

SIDE, CHANNELS = 8, 8
SPEC = tf.TensorSpec((2, SIDE, SIDE, CHANNELS))
KERNEL = np.full((3, 3, CHANNELS, CHANNELS), 0.02, np.float32)
FAST, SLOW = Pair(1.0, 0.5, 0), Pair(1.0, 2.0, 0)


@pytest.fixture(autouse=True)
def toy_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(tuning, "PROGRAM_SHARE", 0.0)
    monkeypatch.setattr(programs, "_known", {})


def costs(monkeypatch: pytest.MonkeyPatch, of: Callable[[ProgramCandidate], Pair | None]) -> list[ProgramCandidate]:
    """The programs that are asked for; XLA has to take them."""
    asked: list[ProgramCandidate] = []

    def pair(self: Costs, candidate: ProgramCandidate) -> Pair | None:
        asked.append(candidate)
        assert candidate.key
        return of(candidate)

    monkeypatch.setattr(Costs, "pair", pair)
    return asked


def calls(graph: tf.Graph) -> list[tf.Operation]:
    return [op for op in graph.get_operations() if reading.is_program(op)]


def traced(function: Callable, *specs: Any) -> Any:
    return functions.trace(function, *(specs or (SPEC,)))


def numbers(seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=SPEC.shape).astype(np.float32))


def chain(x: tf.Tensor) -> tf.Tensor:
    y = tf.nn.conv2d(x, KERNEL, 1, "SAME")
    y = tf.nn.gelu(y * 2.0 + 1.0)
    return tf.nn.conv2d(y - tf.reduce_mean(y, [1, 2], keepdims=True), KERNEL, 1, "SAME")


def test_a_chain_becomes_one_program(monkeypatch):
    costs(monkeypatch, lambda _: FAST)
    function = traced(chain)
    expected = functions.make_function(traced(chain))(numbers())
    made = compile_step(function)
    assert len(made.compiled) == 1
    kinds = [op.type for op in capture(function).ops if op.type not in ("Const", "Identity")]
    assert kinds == ["Placeholder", "Conv2D", PROGRAM_TYPE, "Conv2D"]
    np.testing.assert_allclose(functions.make_function(function)(numbers()), expected, rtol=1e-5, atol=1e-5)
    made.edits.undo()
    assert PROGRAM_TYPE not in {op.type for op in capture(function).ops}
    assert np.array_equal(functions.make_function(function)(numbers()), expected)
    made.edits.redo()
    assert PROGRAM_TYPE in {op.type for op in capture(function).ops}


def convolutions_around(x: tf.Tensor, beta: tf.Variable) -> tf.Tensor:
    """A gradient by hand: a program of the first chain reads `beta`, which the end of the step updates."""
    a = tf.nn.conv2d(x, KERNEL, 1, "SAME")
    b = a + beta
    d = tf.nn.conv2d(tf.tanh(b), KERNEL, 1, "SAME")
    out = tf.nn.conv2d(tf.exp(d * b) * 3.0, KERNEL, 1, "SAME")
    other = tf.nn.conv2d(a, KERNEL, 1, "SAME")
    beta.assign_sub(tf.reduce_mean(tf.matmul(flat(out), flat(other), transpose_a=True), 0))
    return tf.reduce_sum(out)


def flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, (-1, CHANNELS))


def alive(function: Any) -> list[str]:
    return [op.name for op in capture(function).ops if op.type == PROGRAM_TYPE]


def test_undo_leaves_no_program_alive(monkeypatch):
    """Asking about a step makes an update wait for who reads its variable, which may be a program (`updates.hold_back`)."""
    costs(monkeypatch, lambda candidate: FAST if candidate.program.rematerialised else SLOW)
    beta = tf.Variable(tf.zeros((CHANNELS,)))
    function = traced(lambda x: convolutions_around(x, beta))
    updates.hold_back(function.graph)
    before = capture(function)
    made = compile_step(function)
    assert updates.hold_back(function.graph) > 0
    compiled = capture(function)
    made.edits.undo()
    made.edits.undo()
    assert capture(function) == before
    assert compile_step(function) is made
    assert capture(function) == compiled
    assert alive(function)


def test_a_view_that_is_read_outside_alone_is_not_part_of_the_program(monkeypatch):
    """Else equal programs would have two names, and be timed twice."""
    asked = costs(monkeypatch, lambda _: FAST)

    def with_view(x: tf.Tensor) -> list[tf.Tensor]:
        y = tf.nn.gelu(tf.nn.conv2d(x, KERNEL, 1, "SAME"))
        return [tf.nn.conv2d(y, KERNEL, 1, "SAME"), tf.matmul(flat(y), KERNEL[0, 0])]

    compile_step(traced(with_view))
    compile_step(traced(lambda x: with_view(x)[0]))
    assert len({candidate.key for candidate in asked}) == 1


def test_workspaces_of_the_first_round_count_in_the_second(monkeypatch):
    """The second round begins with the step, and its peak, as the first one leaves it."""
    begun: list[int] = []
    decided = compiling._decided

    def seen(graph: tf.Graph, step: StepGraph, *rest: Any) -> Any:
        begun.append(compiling.peak_bytes(step))
        return decided(graph, step, *rest)

    monkeypatch.setattr(compiling, "_decided", seen)
    monkeypatch.setattr(compiling, "pays", lambda *_: True)
    costs(monkeypatch, lambda _: Pair(1.0, 0.5, 1 << 30))
    made = compile_step(traced(chain))
    first, second = begun
    assert second > 1 << 30 > first
    assert made.saved_bytes == first - second


def test_no_kind_of_op_loses_a_nan():
    x = tf.constant([[np.nan, 1.0, -1.0, np.inf], [2.0, -3.0, np.nan, 0.5]])
    plain = tf.function(_of_each_kind, autograph=False)(x)
    compiled = tf.function(_of_each_kind, autograph=False, jit_compile=True)(x)
    assert len(plain) > 100
    lost = [n for n in plain if np.any(np.isnan(plain[n].numpy()) & ~np.isnan(compiled[n].numpy()))]
    assert lost == []


@pytest.mark.parametrize("above", [0.0, 1.0])
def test_no_kind_of_gradient_finds_a_nan_of_its_own(above):
    masked = {f"{kind}Grad" for kind in ("Sqrt", "Rsqrt", "Reciprocal")}  # by the program: the next test
    kinds = [k for k in compiling.KINDS if k.endswith("Grad") and k not in masked | {"BiasAddGrad"}]

    def gradients(x: tf.Tensor, other: tf.Tensor) -> dict[str, tf.Tensor]:
        raws = {kind: getattr(tf.raw_ops, kind) for kind in kinds}
        names = {kind: list(inspect.signature(raw).parameters)[:2] for kind, raw in raws.items()}
        return {
            f"{kind} {i}": raws[kind](**dict(zip(names[kind], two, strict=True)))
            for kind, (i, two) in itertools.product(kinds, enumerate([(x, other), (other, x)]))
        }

    x = tf.constant([[0.0, 1.0, -1.0, np.inf], [2.0, -3.0, -0.0, 0.5]])
    plain = tf.function(gradients, autograph=False)(x, tf.fill(x.shape, above))
    compiled = tf.function(gradients, autograph=False, jit_compile=True)(x, tf.fill(x.shape, above))
    assert len(plain) >= 10
    found = [n for n in plain if np.any(np.isnan(compiled[n].numpy()) & ~np.isnan(plain[n].numpy()))]
    assert found == []


@pytest.mark.parametrize("of", [tf.sqrt, tf.math.rsqrt, tf.math.reciprocal])
def test_a_masked_loss_has_no_nan_in_its_gradient(of, monkeypatch):
    """Where nothing comes from above, TensorFlow's gradient of a square root of 0 is 0."""
    costs(monkeypatch, lambda _: FAST)

    def gradient(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = of(x) * mask
        return tape.gradient(y, x) * 2.0

    x = np.array([0.0, 4.0] * (np.prod(SPEC.shape) // 2), np.float32).reshape(SPEC.shape)
    function, plain = traced(gradient, SPEC, SPEC), traced(gradient, SPEC, SPEC)
    assert compile_step(function).changed
    got, expected = (functions.make_function(f)(tf.constant(x), tf.sign(x)).numpy() for f in (function, plain))
    assert np.isfinite(expected).all()
    assert expected.any()
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", [tf.maximum, tf.minimum])
def test_a_maximum_of_two_tensors_keeps_its_nan(kind, monkeypatch):
    """XLA loses one in the second operand, unless that is a constant."""
    costs(monkeypatch, lambda _: FAST)
    x, y = np.full(SPEC.shape, np.nan, np.float32), np.ones(SPEC.shape, np.float32)

    def two(a, b):
        return tf.tanh(kind(a * 2.0, tf.exp(b) + 1.0)) * 0.5

    def with_a_constant(a, b):
        return tf.tanh(kind(0.0, a * 2.0 + b)) * 0.5

    for of in (two, with_a_constant):
        for first, second in ((x, y), (y, x)):
            function = traced(of, SPEC, SPEC)
            assert compile_step(function).changed
            assert np.isnan(functions.make_function(function)(tf.constant(first), tf.constant(second)).numpy()).all()


def _of_each_kind(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """The results of all kinds with one or two tensors, and of the sums; the other tensor is of no special number."""
    found = {}
    for kind, group in compiling.KINDS.items():
        raw = getattr(tf.raw_ops, kind)
        needed = [p.name for p in inspect.signature(raw).parameters.values() if p.default is inspect.Parameter.empty]
        if kind in ("BiasAddGrad", "LogSoftmax", "Softmax"):
            found[kind] = raw(**{needed[0]: x})
        elif group == compiling.REDUCTION:
            found[kind] = raw(input=x, axis=[1])
        elif group == compiling.ELEMENTWISE and kind not in _OTHER_ARGUMENTS:
            for place, other in itertools.product(range(len(needed)), (0.5, -0.5, 0.0)):
                values = [tf.fill(x.shape, other)] * len(needed)
                values[place] = x
                found[f"{kind} {place} {other}"] = raw(**dict(zip(needed, values, strict=True)))
    return {name: tf.cast(result, tf.float32) for name, result in found.items()}


_OTHER_ARGUMENTS = frozenset({
    "AddN", "BiasAdd", "BroadcastTo", "Cast", "ClipByValue", "Fill", "LogicalAnd", "LogicalNot", "LogicalOr", "Select", "SelectV2",
    "Tile",
})  # fmt: skip


def test_what_does_not_pay_stays(monkeypatch):
    asked = costs(monkeypatch, lambda _: SLOW)
    function = traced(chain)
    before = capture(function)
    assert not compile_step(function).changed
    assert len(asked) > 1  # with sums, and then without
    assert capture(function) == before
    assert not calls(function.graph)


def test_pays():
    assert pays(Pair(1.0, 0.8, 0), 0, 0)
    assert pays(Pair(1.0, 1.0, 0), -1, 0)
    assert pays(Pair(1.0, 1.0, 0), 0, 1)
    assert not pays(Pair(1.0, 0.99, 0), 0, 0)  # as much, in the noise
    assert not pays(Pair(1.0, 0.5, 0), 1, 1)
    assert not pays(Pair(1.0, 1.01, 0), -1, 1)


def test_effects_and_random_numbers_stay(monkeypatch):
    """A variable's update, random numbers and ops that wait for them run as often as before, and in the same order."""
    costs(monkeypatch, lambda _: FAST)
    count = tf.Variable(tf.zeros(SPEC.shape))
    seen = []

    def step(x: tf.Tensor) -> tf.Tensor:
        a = tf.tanh(x) * 2.0
        tf.py_function(lambda value: seen.append(float(value)), [tf.reduce_sum(a)], [])
        count.assign_add(a + 1.0)
        b = tf.exp(count.read_value()) * a
        return tf.tanh(b + tf.random.normal(SPEC.shape, seed=1)) - 1.0

    function = traced(step)
    stateful = [(op.name, op.type) for op in capture(function).ops if op.stateful]
    made = compile_step(function)
    assert made.changed
    assert [(op.name, op.type) for op in capture(function).ops if op.stateful] == stateful
    run = functions.make_function(function)
    for body in (_called(op) for op in calls(function.graph)):
        assert not [op.type for op in body.get_operations() if reading.is_stateful(op) and op.type != "Placeholder"]
    count.assign(tf.zeros(SPEC.shape))
    run(numbers())
    run(numbers())
    assert len(seen) == 2
    np.testing.assert_allclose(count, 2 * (tf.tanh(numbers()) * 2 + 1), rtol=1e-4, atol=1e-5)


def _beside(*_):
    """Leaves the readers of the ops with the ops."""


def _of_another_type(graph, program, outputs, edits):
    _redirect(graph, program, outputs, edits)
    with surgery.insertion(graph, None):
        surgery.replace_outputs(graph, {graph.outputs[0].name: tf.cast(graph.outputs[0], tf.float64)})


def _without_effect(graph, program, outputs, edits):
    _redirect(graph, program, outputs, edits)
    graph.control_outputs = []


_redirect = compiling._redirect


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (_beside, "'.*' runs beside its program"),
        (_of_another_type, "'.*' is .* of float64; expected .* of float32"),
        (_without_effect, "'AssignAddVariableOp' no longer runs"),
    ],
)
def test_a_pass_that_does_not_keep_its_promise_is_found(broken, found, monkeypatch):
    costs(monkeypatch, lambda _: FAST)
    monkeypatch.setattr(compiling, "_redirect", broken)
    count = tf.Variable(tf.zeros(SPEC.shape))

    def step(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(x)
        return chain(x)

    with pytest.raises(RuntimeError, match=f"pass compile: {found}; please report this graph"):
        manager.run(traced(step), [compiling.Compile()])


def _called(op: tf.Operation) -> Any:
    return op.graph._get_function(op.get_attr("f").name).graph


def test_what_xla_refuses_stays_as_it_was(monkeypatch, caplog, tmp_path):
    """An op that XLA has no kernel for, if it were thought to have one: its group is left alone, and the log says why."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path)))
    monkeypatch.setitem(compiling.KINDS, "Dawsn", compiling.ELEMENTWISE)  # TensorFlow 2.22 compiles BesselI0

    def chain(x: tf.Tensor) -> tf.Tensor:
        return tf.math.special.dawsn(tf.nn.conv2d(x, KERNEL, 1, "SAME")) * 2.0

    with caplog.at_level("DEBUG", "lms3d"):
        function = traced(chain)
        before = capture(function)
        assert not compile_step(function).changed
    assert capture(function) == before
    assert "is not compiled" in caplog.text


def test_pairs_are_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path)))
    measured = []

    def both(self: Costs, candidate: ProgramCandidate) -> Any:
        measured.append(candidate)
        return op_costs.Cost(1.0), op_costs.Cost(0.5), 77

    monkeypatch.setattr(Costs, "_both", both)
    assert compile_step(traced(chain)).changed
    assert len(measured) == 1
    monkeypatch.setattr(programs, "_known", {})  # as in another process
    assert compile_step(traced(chain)).changed
    assert len(measured) == 1
    (entries,) = json.loads((tmp_path / "programs.json").read_text()).values()
    assert list(entries.values()) == [[1.0, 0.5, 77]]
    graph = capture(_compiled(chain))
    (call,) = [op for op in graph.ops if op.type == PROGRAM_TYPE]
    assert op_costs._load(tmp_path / "ops.json")[op_costs.conditions("CPU:0")][call.signature].workspace_bytes == 77


def test_a_program_is_measured_as_a_whole(monkeypatch, tmp_path):
    """As an op of the step too, such as under a limit, whose costs are others: however large, it is not cut."""
    costs(monkeypatch, lambda _: FAST)
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path)))
    function = _compiled(chain)
    monkeypatch.setattr(tuning, "RUN_SECONDS", 1e-12)
    monkeypatch.setattr(tuning, "WORTH_SECONDS", 0.0)
    graph, machine = op_costs.with_ops(capture(function), Machine(), function)
    (call,) = [op for op in graph.ops if op.type == PROGRAM_TYPE]
    assert machine.op_table[call.signature].seconds > 0


def _compiled(function: Callable) -> Any:
    made = traced(function)
    compile_step(made)
    return made


def test_real_measurements():
    """The stopwatch itself: no number is promised, but whatever it says, results are the same to rounding."""
    pair = Costs("CPU:0", 1 << 30).pair(_candidate())
    assert pair is not None
    assert pair.seconds > 0
    assert pair.plain_seconds > 0


def test_what_is_too_large_is_not_measured_until_the_process_ends(monkeypatch, tmp_path):
    """Unless somebody has measured it already. Another process may have the memory: nothing is kept."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path)))
    monkeypatch.setattr(Costs, "_both", lambda *_: (op_costs.Cost(1.0), op_costs.Cost(0.5), 77))
    candidate = _candidate()
    assert Costs("CPU:0", 1).pair(candidate) is None
    assert Costs("CPU:0", 1 << 30).pair(candidate) is None
    assert not (tmp_path / "programs.json").exists()
    monkeypatch.setattr(programs, "_known", {})
    assert Costs("CPU:0", 1 << 30).pair(candidate) == Pair(1.0, 0.5, 77)
    monkeypatch.setattr(programs, "_known", {})
    costs_of_today = Costs("CPU:0", 1)
    costs_of_today.known.clear()  # another rank measured meanwhile
    assert costs_of_today.pair(candidate) == Pair(1.0, 0.5, 77)


def test_a_known_program_has_costs_under_other_conditions(monkeypatch, tmp_path):
    """Such as under a hard limit: its workspace is known there, too. One that is too large to be measured there is left out."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path)))
    monkeypatch.setattr(Costs, "_both", lambda *_: (op_costs.Cost(1.0), op_costs.Cost(0.5), 77))
    assert compile_step(traced(chain)).changed
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    function = _compiled(chain)
    graph, _ = op_costs.with_ops(capture(function), Machine(), function, free_bytes=0)
    (call,) = [op for op in graph.ops if op.type == PROGRAM_TYPE]
    assert call.workspace_bytes == 77
    assert op_costs._unknown(graph, [call], Machine(), {}, 1 << 30) == [call]
    assert op_costs._unknown(graph, [call], Machine(), {}, 1) == []


@pytest.mark.parametrize("damaged", [[], 0, "", [1, 2], {"a": 1}, [1.0, -1.0, 0], [1.0, 1.0, float("inf")]])
def test_a_damaged_store_counts_as_none(damaged, monkeypatch, tmp_path):
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path)))
    monkeypatch.setattr(Costs, "_both", lambda *_: (op_costs.Cost(1.0), op_costs.Cost(0.5), 77))
    candidate = _candidate()
    (tmp_path / "programs.json").write_text(json.dumps({programs._conditions("CPU:0"): {candidate.key: damaged}}))
    assert Costs("CPU:0", 1 << 30).pair(candidate) == Pair(1.0, 0.5, 77)


def _candidate() -> ProgramCandidate:
    function = traced(chain)
    step = capture(function)
    fusible, folded = compiling._fusible(function.graph, step, compiling._ROUNDS[0], "CPU:0")
    (group,) = compiling.fusion.groups(step, fusible)
    program = compiling.fusion.program(step, group, fusible)
    assert program is not None
    return ProgramCandidate(function.graph, program, folded)


# -- what has no plan ----------------------------------------------------------------------------------------------------

SPECS = (tf.TensorSpec((2, 16, 16, 3)), tf.TensorSpec((2, 16, 16, 2)))


def planned(monkeypatch: pytest.MonkeyPatch, fits: Callable[[StepGraph], bool], **options: Any) -> Any:
    """The plan of a small network, and the questions asked; only steps that `fits` says have one."""
    asked: list[StepRequest] = []
    make_plan = plan_cache.cached_plan

    def decided(request: StepRequest) -> Any:
        asked.append(request)
        if not fits(request.graph):
            raise DoesNotFit("no plan", smallest_limit_bytes=2 << 30)
        return make_plan(request)

    costs(monkeypatch, lambda _: FAST)
    monkeypatch.setattr(plan_cache, "cached_plan", decided)
    options = {"memory_limit": "1GiB", "compile": "auto", "effort_seconds": 0.1, "with_floor": False} | options
    return plan_step(network("group", "gelu"), SPECS, **options), asked


def has_programs(graph: StepGraph) -> bool:
    return any(op.type == PROGRAM_TYPE for op in graph.ops)


def in_slabs(graph: StepGraph) -> bool:
    return any(op.group for op in graph.ops)


def test_a_step_with_programs_that_does_not_fit_is_planned_as_traced(monkeypatch):
    found, asked = planned(monkeypatch, lambda graph: not has_programs(graph), slabs="off")
    assert [has_programs(request.graph) for request in asked] == [True, False]
    assert not found.prediction.compiled
    assert found.prediction.fits


def test_and_then_in_slabs(monkeypatch):
    monkeypatch.setattr(choosing, "_rungs", lambda *_: iter([(), ((0, 2),)]))
    found, asked = planned(monkeypatch, in_slabs)
    assert [(has_programs(r.graph), in_slabs(r.graph)) for r in asked] == [(True, False), (False, False), (False, True)]
    assert found.prediction.slabs


def test_the_plan_for_the_floor_has_programs_too(monkeypatch):
    """The second question about one function: its programs, made for the first one, are no others."""
    seen: list[int] = []
    found, asked = planned(monkeypatch, lambda graph: len(seen) > 1 or seen.append(0), slabs="off")
    assert [has_programs(request.graph) for request in asked] == [True, False, True]
    assert asked[0].graph == asked[2].graph
    assert found.prediction.compiled


def test_without_lms_is_as_traced(monkeypatch):
    found, _ = planned(monkeypatch, lambda _: True, slabs="off", with_floor=True)
    off, _ = planned(monkeypatch, lambda _: True, slabs="off", compile="off", with_floor=True)
    compiled, traced_alone = found.prediction, off.prediction
    assert compiled.compiled
    assert compiled.unedited_peak_bytes == traced_alone.unedited_peak_bytes
    assert compiled.unedited_limit_bytes == traced_alone.unedited_limit_bytes
    assert compiled.floor_bytes <= traced_alone.floor_bytes
    assert compiled.predicted_peak_bytes < traced_alone.predicted_peak_bytes
    assert compiled.unmoved_step_seconds == pytest.approx(compiled.predicted_step_seconds)
    told = replace(compiled, limit_bytes=1 << 20, floor_bytes=2 << 20)
    assert "does not fit in 1.00 MiB" in told.headline()


def test_of_another_machine_nothing_is_compiled():
    with pytest.raises(InputError, match="compile 'auto': programs are measured here"):
        plan_step(network("group", "gelu"), SPECS, memory_limit="1GiB", machine=Machine(), compile="auto")


def test_the_command_line_reaches_lms():
    options = tasks.chosen(plan._parsed(["--lms-compile", "auto"]))
    assert needs.lms_arguments(options)["compile"] == "auto"


# -- Keras models --------------------------------------------------------------------------------------------------------

NORMALISATIONS = {
    "batch": keras.layers.BatchNormalization,
    "group": lambda: keras.layers.GroupNormalization(4),
    "layer": keras.layers.LayerNormalization,
}


def network(normalisation: str, activation: str, side: int = 16) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    x = given = layers.Input((side, side, 3))
    for i in range(2):
        y = layers.Conv2D(CHANNELS, 3, padding="same")(x)
        y = layers.Activation(activation)(NORMALISATIONS[normalisation]()(y))
        y = layers.Dropout(0.2, seed=i)(y)
        x = y if i == 0 else layers.Add()([x, y])
    model = keras.Model(given, layers.Conv2D(2, 1)(x))
    model.compile(keras.optimizers.SGD(0.05), loss="mse", jit_compile=False)
    return model


def trained(model: keras.Model, lms: LMS, steps: int = 4) -> tuple[list[float], list[np.ndarray]]:
    random = np.random.default_rng(0)
    side = model.input_shape[1]
    x = random.normal(size=(2 * steps, side, side, 3)).astype(np.float32)
    y = random.normal(size=(2 * steps, side, side, 2)).astype(np.float32)
    losses: list[float] = []
    told = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"])))
    model.fit(x, y, batch_size=2, verbose=0, shuffle=False, callbacks=[told, lms])
    return losses, model.get_weights()


@pytest.mark.parametrize(("normalisation", "activation"), [("batch", "relu"), ("group", "gelu"), ("layer", "swish")])
def test_training_is_the_same_to_rounding(normalisation, activation, monkeypatch):
    costs(monkeypatch, lambda _: FAST)
    losses, weights = trained(network(normalisation, activation), LMS())
    lms = LMS(compile="auto")
    new_losses, new_weights = trained(network(normalisation, activation), lms)
    np.testing.assert_allclose(new_losses, losses, rtol=1e-4)
    for new, old in zip(new_weights, weights, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-4)
    report = lms.report
    assert report is not None
    assert sum(one.ops for one in report.compiled) > 50
    assert "programs compiled" in report.to_markdown()
    assert "Compiled: " in report.headline()
    assert Prediction.from_dict(
        {k: v for k, v in report.to_dict().items() if k in Prediction.__dataclass_fields__} | {"rewritten": False}
    )


def test_a_plan_makes_programs_again_and_changes_no_bit(monkeypatch):
    costs(monkeypatch, lambda _: FAST)
    expected = trained(network("group", "gelu", 64), LMS(compile="auto"), 2)
    lms = LMS(compile="auto", planner="recompute_everything", adapt=False)
    found = trained(network("group", "gelu", 64), lms, 2)
    assert any(again.op.startswith("compiled/") for again in lms.plan.recomputes)
    assert found[0] == expected[0]
    assert all(np.array_equal(a, b) for a, b in zip(found[1], expected[1], strict=True))


def test_a_plan_swaps_programs_results_and_changes_no_bit(monkeypatch, tmp_path):
    costs(monkeypatch, lambda _: FAST)
    free = LMS(compile="auto")
    expected = trained(network("group", "gelu"), free)
    lms = LMS(
        compile="auto",
        swapout_threshold=2,
        swapin_ahead=2,
        swapin_groupby=0,
        sync_mode=0,
        tier="disk",
        swap_dir=tmp_path,
    )
    found = trained(network("group", "gelu"), lms)
    assert any(out.tensor.startswith("compiled/") for out in lms.plan.swap_outs)
    assert found[0] == expected[0]
    assert all(np.array_equal(a, b) for a, b in zip(found[1], expected[1], strict=True))


def test_off_is_the_step_of_before(monkeypatch):
    asked = costs(monkeypatch, lambda _: FAST)
    lms = LMS()
    trained(network("batch", "relu"), lms)
    (step,) = lms._runner.steps.values()
    assert not calls(step.prepared.function.graph)
    assert not asked
    assert not lms.report.compiled
    trained(network("batch", "relu"), LMS(enabled=False, compile="auto"))
    assert not asked


def test_slabs_are_not_compiled(monkeypatch):
    """A step in slabs has rules for its ops; none of them is for a program."""
    asked = costs(monkeypatch, lambda _: FAST)
    lms = LMS(compile="auto", slabs={0: 2})
    trained(network("group", "relu"), lms)
    assert not asked
    assert not lms.report.compiled


def test_a_function_of_the_user_is_not_compiled(monkeypatch):
    """A tape may want its gradients, and TensorFlow has none of a program."""
    asked = costs(monkeypatch, lambda _: FAST)
    rewritten = LMS(compile="auto").rewrite(traced(chain))
    assert not asked
    x = numbers()
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(rewritten(x))
    assert tape.gradient(total, x) is not None


def test_an_unknown_word_is_refused():
    with pytest.raises(InputError, match="compile 'on': expected auto or off"):
        LMS(compile="on")
