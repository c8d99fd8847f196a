"""The way to a GPU, on two logical CPU devices: `CPU:1` computes, `CPU:0` is the host. In a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from lms3d.swap import surgery, tflms
from lms3d.swap.capture import capture
from lms3d.swap.rewrite import rewrite
from lms3d.swap.tiers import HostTier

def step(x):
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
expected = surgery.trace(step, spec)(data).numpy()
function = surgery.trace(step, spec)
graph = capture(function, compute_device="CPU:1")
parameters = tflms.Parameters(swapout_threshold=4, swapin_ahead=1, swapin_groupby=0, sync_mode=0)
plan = tflms.build(graph, parameters)
made, _ = rewrite(function, graph, plan, HostTier())
same = made(data).numpy().tobytes() == expected.tobytes()

def op(name):
    found = made.graph.get_operation_by_name(name)
    return {"device": found.device, "type": found.type, "inputs": [t.op.name for t in found.inputs],
            "control": [c.name for c in found.control_inputs]}
print(json.dumps({
    "same": same,
    "on_device": {o.name: o.on_device for o in graph.ops},
    "ops": {n: op(n) for n in ("a", "z", "lms/swap_out/a", "lms/swap_in/a/0")},
    "hybrid_compute": capture(function, compute_device="CPU:0").by_name["a"].on_device,
}))
"""


@pytest.fixture(scope="module")
def seen() -> dict:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_both_identities_are_on_the_host_and_the_trigger_on_the_second(seen):
    out, back = seen["ops"]["lms/swap_out/a"], seen["ops"]["lms/swap_in/a/0"]
    assert (out["type"], back["type"]) == ("Identity", "Identity")
    assert [d["device"].upper().endswith("CPU:0") for d in (out, back)] == [True, True]
    assert (out["inputs"], out["control"]) == (["a"], [])
    assert back["inputs"] == ["lms/swap_out/a"]
    assert len(back["control"]) == 1


def test_the_compute_device_keeps_its_ops(seen):
    assert [seen["ops"][n]["device"].upper().endswith("CPU:1") for n in ("a", "z")] == [True, True]
    assert seen["ops"]["z"]["inputs"] == ["f4", "lms/swap_in/a/0"]


def test_ops_on_the_other_device_are_neither_sources_nor_triggers(seen):
    assert not seen["on_device"]["elsewhere"]
    assert seen["on_device"]["a"]
    assert seen["ops"]["lms/swap_in/a/0"]["control"] == ["f3"]  # `elsewhere` is one level nearer
    assert not seen["hybrid_compute"]


def test_no_bit_changes(seen):
    assert seen["same"]
