"""Plans in these tests do not depend on how busy the machine is."""

from __future__ import annotations

import pytest

from lms3d.swap.cost import Machine


@pytest.fixture(autouse=True)
def fixed_machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Engines take default speeds instead of measuring them."""
    from lms3d.swap.engine import Engine

    machine = Machine()
    monkeypatch.setattr(Engine, "machine", property(lambda self: machine))
    return machine


@pytest.fixture(params=["host", "disk"])
def tier(request: pytest.FixtureRequest, tmp_path):
    """Each tier in turn; the disk's files lie in the test's own folder."""
    from lms3d.swap.tiers import DiskTier, HostTier

    made = HostTier() if request.param == "host" else DiskTier(tmp_path / "swap")
    yield made
    made.close()
