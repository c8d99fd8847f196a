"""What tests of figures share."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, which stay open until the test ends."""
    kept = []
    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", kept.append)
        yield kept
    plt.close("all")
