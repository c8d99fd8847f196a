"""Ranks start TensorFlow with the number of threads that all can have, and compare their circumstances."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.device import circumstances, memory, startup
from lms3d.ranks.world import World


@pytest.mark.parametrize(
    ("gpus", "without_gpu", "threads"), [([], False, 2), (["GPU:0"], False, 8), (["GPU:0"], True, 2)]
)
def test_threads_are_those_of_the_fewest_cores_unless_a_gpu_computes(monkeypatch, gpus, without_gpu, threads):
    asked = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    for name in ("list_logical_devices", "set_visible_devices"):
        monkeypatch.setattr(tf.config, name, lambda *_: [])
    monkeypatch.setattr(tf.config.threading, "set_inter_op_parallelism_threads", lambda number: None)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", asked.append)
    monkeypatch.setattr(memory, "share_host", lambda processes: None)
    startup._make_devices(World(size=2), None, without_gpu, own=8, fewest=2)
    assert asked == [threads]


@pytest.mark.parametrize("restarted", [False, True])
def test_ranks_are_compared_at_every_start(monkeypatch, restarted):
    compared = []
    monkeypatch.setattr(circumstances, "require_alike", lambda world, **how: compared.append(how))
    monkeypatch.setattr(startup, "_make_devices", lambda *_, **__: None)
    startup.start_tensorflow(elastic_restart=restarted)
    assert compared == [{"restarted": restarted}]
