"""Plans for a machine whose model knows the workspace of filter gradients."""

from __future__ import annotations

from dataclasses import replace

from lms3d.engine.cost import Machine
from lms3d.engine.passes.pieces import TYPES
from lms3d.keras_step.estimate import plan_step
from lms3d.machines import machine_files
from tests.lms3d.keras_step.test_slabs import SPEC, network


def test_a_plan_for_an_h200_counts_workspaces_of_pieces(monkeypatch):
    speeds = machine_files.load("h200-sxm").speeds()
    model = network()

    def planned(machine: Machine):
        return plan_step(model, SPEC, memory_limit="64MiB", machine=machine, with_floor=False)

    def workspaces(machine: Machine) -> list[int]:
        return [op.workspace_bytes for op in planned(machine).graph.ops if op.type in TYPES]

    monkeypatch.setattr("lms3d.device.workspace.workspace_limit_bytes", lambda limit_bytes: 256 << 10)
    assert 128 << 10 < max(workspaces(speeds)) <= 256 << 10
    assert set(workspaces(replace(speeds, workspaces=()))) == {0}
    assert len(workspaces(speeds)) > len(workspaces(replace(speeds, workspaces=())))
