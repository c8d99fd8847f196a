"""Nothing is collected while TensorFlow is imported for the first time, nor are its objects looked at later."""

import gc
import subprocess
import sys

import pytest

from lms3d.collector import kept_from_imports


@pytest.fixture
def frozen(monkeypatch) -> list[bool]:
    """One entry per freeze: whether the collector was off."""
    calls: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(not gc.isenabled()))
    return calls


def test_the_first_import_is_kept_from_the_collector(monkeypatch, frozen):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with kept_from_imports():
        assert not gc.isenabled()
        assert not frozen
    assert gc.isenabled()
    assert frozen == [True]


def test_a_failed_one_leaves_the_collector_on(monkeypatch, frozen):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(ImportError), kept_from_imports():
        raise ImportError("a library for another machine")
    assert gc.isenabled()
    assert not frozen


def test_later_ones_and_a_collector_that_is_off_are_left_alone(monkeypatch, frozen):
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    with kept_from_imports():
        assert gc.isenabled()
    monkeypatch.delitem(sys.modules, "tensorflow")
    gc.disable()
    try:
        with kept_from_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert not frozen


def test_the_tests_are_imported_so():
    assert gc.get_freeze_count() > 10_000


def test_a_command_starts_tensorflow_so():
    """And without what Keras only imports if it is there, which is there afterwards."""
    code = """
import gc, sys
from lms3d import keras_backend
from lms3d.device import startup
startup.start_tensorflow()
print(gc.get_freeze_count() > 100_000, [name for name in keras_backend.OPTIONAL if name in sys.modules])
import matplotlib, pandas, sklearn
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr
