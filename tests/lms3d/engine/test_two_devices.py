"""The way to a GPU, on two logical CPU devices: `CPU:1` computes, `CPU:0` is the host. In a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lms3d.engine.tuning import SMALL_COPIES

LIMIT_SHARE = 0.45  # of what the step needs without LMS: some of its tensors are swapped, others computed again
LINK_BYTES_PER_SECOND = 5e8


def as_on_a_gpu() -> None:
    """Two devices, of which LMS takes the second for the one that computes, with speeds that do not depend on the machine."""
    import tensorflow as tf

    from lms3d.device import memory
    from lms3d.engine.cost import Machine
    from lms3d.engine.engine import Engine
    from lms3d.engine.step_model.pool import GPU_POOL
    from lms3d.keras_step import settings

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    memory.compute_device = lambda: "CPU:1"
    settings.pool_of = lambda device, limited: GPU_POOL
    link = LINK_BYTES_PER_SECOND
    machine = Machine(swap_out_bytes_per_second=link, swap_in_bytes_per_second=link)
    Engine.machine = property(lambda self: machine)
    Engine._with_ops = lambda self, graph, machine, function: (graph, machine)


def placed(op: Any) -> dict[str, Any]:
    """An op's device, its inputs, and the ops that it waits for."""
    return {
        "type": op.type,
        "device": op.device.rpartition("/device:")[2],
        "inputs": [(tensor.op.name, tensor.op.device.rpartition("/device:")[2]) for tensor in op.inputs],
        "control": [(other.name, other.device.rpartition("/device:")[2]) for other in op.control_inputs],
    }


def rewritten() -> dict[str, Any]:
    """A function with a plan of TFLMS: where each of its ops is, and what the capture says of them."""
    import tensorflow as tf

    from lms3d.engine.planners import tflms
    from lms3d.engine.tensorflow import functions
    from lms3d.engine.tensorflow.capture import capture
    from lms3d.engine.tiers.host import HostTier
    from tests.lms3d.engine.traced import rewrite

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:1"):
            a = tf.tanh(x, name="a")
            f = a
            for i in range(1, 4):
                f = tf.sin(f, name=f"f{i}")
            with tf.device("CPU:0"):
                elsewhere = tf.cos(f, name="elsewhere")
            f = tf.sin(elsewhere, name="f4")
            return tf.add(f, a, name="z")

    spec = tf.TensorSpec((64, 32))
    data = tf.random.stateless_normal((64, 32), (1, 2))
    expected = functions.trace(step, spec)(data).numpy()
    function = functions.trace(step, spec)
    graph = capture(function, compute_device="CPU:1")
    parameters = tflms.Parameters(swapout_threshold=4, swapin_ahead=1, swapin_groupby=0, sync_mode=0)
    made, _ = rewrite(function, graph, tflms.build(graph, parameters), HostTier())
    return {
        "same": made(data).numpy().tobytes() == expected.tobytes(),
        "on_device": {op.name: op.on_device for op in graph.ops},
        "ops": {op.name: placed(op) for op in made.graph.get_operations()},
        "hybrid_compute": capture(function, compute_device="CPU:0").by_name["a"].on_device,
    }


def seconds_of_a_copy(copying: float, adding: float) -> float:
    """What a copy of a few bytes costs to the other device, if the real chains of additions, with copies among them and without,
    take these seconds: a clock would also count what else the machine does."""
    from lms3d.engine.tiers import host

    stated = iter([1.0, 1.0, copying, adding])  # the first two for the speeds

    def run(work: Callable[[], object]) -> float:
        work()
        return next(stated)

    with mock.patch.object(host, "best_seconds", run):
        return host.HostTier.speed("CPU:1", None).node_seconds


def trained(side: int = 16, **options: Any) -> dict[str, Any]:
    """Four steps of a small network on `CPU:1` through `fit`: its bits, its plan, and where the ops of the plan are."""
    import keras
    import numpy as np
    import tensorflow as tf

    from lms3d import models
    from lms3d.keras_step.callback import LMS

    keras.utils.set_random_seed(7)
    with tf.device("CPU:1"):
        model = models.build("isensee2017", input_shape=(side, side, side, 4), filters=(8, 16))
        model.compile("adam", "mse", jit_compile=False)
        model.optimizer.build(model.trainable_variables)
    step = model.train_step

    def on_device(data: Any) -> Any:
        with tf.device("CPU:1"):
            return step(data)

    model.train_step = on_device
    x = np.random.default_rng(3).random((4, side, side, side, 4), np.float32)
    lms = LMS(tier="host", adapt=False, **options)
    history = model.fit(x, x[..., :3], batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[lms])
    ops = next(iter(lms._runner.steps.values())).prepared.function.graph.get_operations()
    return {
        "losses": history.history["loss"],
        "variables": [np.asarray(v).tobytes() for v in [*model.variables, *model.optimizer.variables]],
        "plan": lms.plan,
        "report": lms.report,
        "ops": {op.name: placed(op) for op in ops},
    }


@pytest.fixture(scope="module")
def two_devices(in_fresh_process: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a function of this module in a process with two devices."""
    in_fresh_process(as_on_a_gpu)
    return in_fresh_process


@pytest.fixture(scope="module")
def seen(two_devices) -> dict[str, Any]:
    return two_devices(rewritten)


def test_both_identities_are_on_the_host_and_the_trigger_on_the_second(seen):
    out, back = seen["ops"]["lms/swap_out/a"], seen["ops"]["lms/swap_in/a/0"]
    assert (out["type"], back["type"]) == ("Identity", "Identity")
    assert [d["device"] for d in (out, back)] == ["CPU:0", "CPU:0"]
    assert (out["inputs"], out["control"]) == ([("a", "CPU:1")], [])
    assert back["inputs"] == [("lms/swap_out/a", "CPU:0")]
    assert len(back["control"]) == 1


def test_the_compute_device_keeps_its_ops(seen):
    assert [seen["ops"][n]["device"] for n in ("a", "z")] == ["CPU:1", "CPU:1"]
    assert [name for name, _ in seen["ops"]["z"]["inputs"]] == ["f4", "lms/swap_in/a/0"]


def test_ops_on_the_other_device_are_neither_sources_nor_triggers(seen):
    assert not seen["on_device"]["elsewhere"]
    assert seen["on_device"]["a"]
    assert seen["ops"]["lms/swap_in/a/0"]["control"] == [("f3", "CPU:1")]  # `elsewhere` is one level nearer
    assert not seen["hybrid_compute"]


@pytest.mark.parametrize(("copying", "adding", "expected"), [(0.5, 0.1, 0.4), (0.1, 0.5, 0.0)])
def test_a_copy_to_another_device_has_a_price_whatever_its_bytes(two_devices, copying, adding, expected):
    """What the copies of a chain add to it, shared among them; nothing if a busy machine ran the chain without copies slower."""
    assert two_devices(seconds_of_a_copy, copying, adding) == pytest.approx(expected / (2 * SMALL_COPIES))


def test_no_bit_changes(seen):
    assert seen["same"]


@pytest.fixture(scope="module")
def hybrid(two_devices) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without LMS, and with a plan of the planner for what lies between the floor and what the step needs."""
    without = two_devices(trained, enabled=False)
    limit = int(LIMIT_SHARE * without["report"].unedited_limit_bytes)
    return without, two_devices(trained, memory_limit=limit, slabs="off")


@pytest.fixture(scope="module")
def sliced(two_devices) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without LMS, and in slabs with a plan that moves some of them."""
    without = two_devices(trained, 32, enabled=False)
    limit = int(LIMIT_SHARE * without["report"].unedited_limit_bytes)
    return without, two_devices(trained, 32, memory_limit=limit, slabs={0: 4, 1: 2})


def lms_ops(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: op for name, op in found["ops"].items() if name.startswith(f"lms/{kind}/")}


def test_a_hybrid_plan_of_the_callback_changes_no_bit(hybrid):
    without, found = hybrid
    assert found["plan"].swap_outs
    assert found["plan"].recomputes
    assert without["plan"].empty
    assert found["losses"] == without["losses"]
    assert found["variables"] == without["variables"]


def test_it_swaps_to_the_host_and_recomputes_on_the_device(hybrid):
    _, found = hybrid
    outs, backs, again = (lms_ops(found, kind) for kind in ("swap_out", "swap_in", "recompute"))
    assert len(outs) == len(found["plan"].swap_outs)
    assert len(backs) == len(found["plan"].swap_ins)
    assert len(again) == len(found["plan"].recomputes)
    assert {op["device"] for op in [*outs.values(), *backs.values()]} == {"CPU:0"}
    assert {op["device"] for op in again.values()} == {"CPU:1"}
    for op in outs.values():  # straight from the device
        assert [device for _, device in op["inputs"]] == ["CPU:1"]
    for op in (
        backs.values()
    ):  # host to host: the copy to the device begins when the second fires, and something tells it when
        assert [name.startswith("lms/swap_out/") for name, _ in op["inputs"]] == [True]
        triggers = [
            device for name, device in op["control"] if not name.startswith("lms/swap_out/")
        ]  # these free memory for it
        assert set(triggers) == {"CPU:1"}


def test_what_comes_back_is_read_on_the_device(hybrid):
    _, found = hybrid
    readers = {
        name: op["device"] for name, op in found["ops"].items()
        if any(read.startswith(("lms/swap_in/", "lms/recompute/")) for read, _ in op["inputs"])
    }  # fmt: skip
    assert readers
    assert set(readers.values()) == {"CPU:1"}


def test_slabs_compute_on_the_device_and_wait_on_the_host(sliced):
    _, found = sliced
    pieces = {name: op for name, op in found["ops"].items() if name.startswith("slabs/") and op["type"] != "Const"}
    large = {
        op["device"] for op in pieces.values() if op["type"] in ("Conv3D", "BiasAdd", "ConcatV2", "LeakyRelu", "Pad")
    }
    assert large == {"CPU:1"}
    outs, backs = lms_ops(found, "swap_out"), lms_ops(found, "swap_in")
    assert any(source.startswith("slabs/") for op in outs.values() for source, _ in op["inputs"])
    assert {op["device"] for op in [*outs.values(), *backs.values()]} == {"CPU:0"}
    assert {op["device"] for op in lms_ops(found, "recompute").values()} <= {"CPU:1"}


def test_slabs_with_a_plan_train_as_the_whole_step(sliced):
    without, found = sliced
    assert found["report"].slabs == ((0, 4), (1, 2))
    np.testing.assert_allclose(found["losses"], without["losses"], rtol=1e-4)
