"""`LMS(compile="auto")`: programs in the place of chains of ops, equal to rounding, and nothing else touched.

What pays is decided by a stopwatch; here it is said (`costs`), so that the same is compiled everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.errors import InputError
from lms3d.keras_step.callback import LMS
from lms3d.swap import tuning
from lms3d.swap.cost import Machine
from lms3d.swap.ir import PROGRAM_TYPE
from lms3d.swap.prediction import Prediction
from lms3d.swap.tensorflow import compiling, op_costs, programs, surgery
from lms3d.swap.tensorflow.capture import capture
from lms3d.swap.tensorflow.compiling import compile_step, pays
from lms3d.swap.tensorflow.programs import Candidate, Costs, Pair

SIDE, CHANNELS = 8, 8
SPEC = tf.TensorSpec((2, SIDE, SIDE, CHANNELS))
KERNEL = np.full((3, 3, CHANNELS, CHANNELS), 0.02, np.float32)
FAST, SLOW = Pair(1.0, 0.5, 0), Pair(1.0, 2.0, 0)


@pytest.fixture(autouse=True)
def toy_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(tuning, "PROGRAM_SHARE", 0.0)
    monkeypatch.setattr(programs, "_known", {})


def costs(monkeypatch: pytest.MonkeyPatch, of: Callable[[Candidate], Pair | None]) -> list[Candidate]:
    """What is asked for; XLA has to take it."""
    asked: list[Candidate] = []

    def pair(self: Costs, candidate: Candidate) -> Pair | None:
        asked.append(candidate)
        assert candidate.key
        return of(candidate)

    monkeypatch.setattr(Costs, "pair", pair)
    return asked


def calls(graph: tf.Graph) -> list[tf.Operation]:
    return [op for op in graph.get_operations() if surgery.is_program(op)]


def traced(function: Callable, *specs: Any) -> Any:
    return surgery.trace(function, *(specs or (SPEC,)))


def numbers(seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=SPEC.shape).astype(np.float32))


def chain(x: tf.Tensor) -> tf.Tensor:
    y = tf.nn.conv2d(x, KERNEL, 1, "SAME")
    y = tf.nn.gelu(y * 2.0 + 1.0)
    return tf.nn.conv2d(y - tf.reduce_mean(y, [1, 2], keepdims=True), KERNEL, 1, "SAME")


def test_a_chain_becomes_one_program(monkeypatch):
    costs(monkeypatch, lambda _: FAST)
    function = traced(chain)
    expected = surgery.make_function(traced(chain))(numbers())
    made = compile_step(function)
    assert len(made.compiled) == 1
    kinds = [op.type for op in capture(function).ops if op.type not in ("Const", "Identity")]
    assert kinds == ["Placeholder", "Conv2D", PROGRAM_TYPE, "Conv2D"]
    np.testing.assert_allclose(surgery.make_function(function)(numbers()), expected, rtol=1e-5, atol=1e-5)
    made.undo()
    assert PROGRAM_TYPE not in {op.type for op in capture(function).ops}
    assert np.array_equal(surgery.make_function(function)(numbers()), expected)
    made.redo()
    assert PROGRAM_TYPE in {op.type for op in capture(function).ops}


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
    run = surgery.make_function(function)
    for body in (_called(op) for op in calls(function.graph)):
        assert not [op.type for op in body.get_operations() if surgery.is_stateful(op) and op.type != "Placeholder"]
    count.assign(tf.zeros(SPEC.shape))
    run(numbers())
    run(numbers())
    assert len(seen) == 2
    np.testing.assert_allclose(count, 2 * (tf.tanh(numbers()) * 2 + 1), rtol=1e-4, atol=1e-5)


def _called(op: tf.Operation) -> Any:
    return op.graph._get_function(op.get_attr("f").name).graph


def test_what_xla_refuses_stays_as_it_was(monkeypatch, caplog, tmp_path):
    """An op that XLA has no kernel for, if it were thought to have one: its group is left alone, and the log says why."""
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))
    monkeypatch.setitem(compiling.KINDS, "BesselI0", compiling.ELEMENTWISE)

    def chain(x: tf.Tensor) -> tf.Tensor:
        return tf.math.bessel_i0(tf.nn.conv2d(x, KERNEL, 1, "SAME")) * 2.0

    with caplog.at_level("DEBUG", "lms3d"):
        function = traced(chain)
        before = capture(function)
        assert not compile_step(function).changed
    assert capture(function) == before
    assert "is not compiled" in caplog.text


def test_pairs_are_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))
    measured = []

    def both(self: Costs, candidate: Candidate) -> Any:
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
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))
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


def test_what_is_too_large_is_not_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))
    assert Costs("CPU:0", 1).pair(_candidate()) is None


def _candidate() -> Candidate:
    function = traced(chain)
    step = capture(function)
    fusible, folded = compiling._fusible(function.graph, step, compiling._ROUNDS[0], "CPU:0")
    (group,) = compiling.fusion.groups(step, fusible)
    program = compiling.fusion.program(step, group, fusible)
    assert program is not None
    return Candidate(function.graph, program, folded)


# -- Keras models --------------------------------------------------------------------------------------------------------

NORMALISATIONS = {
    "batch": keras.layers.BatchNormalization,
    "group": lambda: keras.layers.GroupNormalization(4),
    "layer": keras.layers.LayerNormalization,
}


def network(normalisation: str, activation: str) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    x = given = layers.Input((16, 16, 3))
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
    x = random.normal(size=(2 * steps, 16, 16, 3)).astype(np.float32)
    y = random.normal(size=(2 * steps, 16, 16, 2)).astype(np.float32)
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


def test_a_plan_changes_no_bit_and_makes_programs_again(monkeypatch, tmp_path):
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
