"""Plans in these tests do not depend on how busy the machine is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.engine.cost import Machine


@pytest.fixture(autouse=True)
def fixed_machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Engines take default speeds instead of measuring the machine and single ops."""
    from lms3d.engine.engine import Engine

    machine = Machine()

    def of_engine(self: Engine) -> Machine:
        return replace(machine, mapped=self.mapped and self.settings.tier == "disk")

    monkeypatch.setattr(Engine, "machine", property(of_engine))
    monkeypatch.setattr(Engine, "_with_ops", lambda self, graph, machine, function: (graph, machine))
    return machine


@pytest.fixture(autouse=True)
def nothing_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier tests left on the device, and when it goes, does not decide how tight a test's limit is."""
    from lms3d.keras_step import on_device

    monkeypatch.setattr(on_device, "_extra_bytes", lambda function, batches, pool: 0)


@pytest.fixture(params=["host", "disk"])
def tier(request: pytest.FixtureRequest, tmp_path):
    """Each tier in turn; the disk's files lie in the test's own folder."""
    from lms3d.engine.tiers.disk import DiskTier
    from lms3d.engine.tiers.host import HostTier

    made = HostTier() if request.param == "host" else DiskTier(tmp_path / "swap")
    yield made
    made.close()
