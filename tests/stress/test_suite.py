"""Longer tests of the suite are found, tried with the variable that makes them longer, and their failures told."""

import pytest

from tests import thorough
from tests.stress.suite import TESTS

LONGER = "import os\n\ndef test_longer():\n    assert os.environ.get('LMS3D_THOROUGH') == '1'\n"


def test_the_files_are_those_that_have_longer_tests():
    assert "tests/lms3d/engine/slabs/test_rules.py" in TESTS.groups
    assert "tests/experiments/test_gpu_case_study.py" in TESTS.groups
    assert "tests/stress/test_suite.py" not in TESTS.groups


@pytest.mark.parametrize(("more", "told"), [("", ""), ("    assert 'CI' in os.environ\n", "1 failed")])
def test_a_file_is_tried_with_other_examples_each_time(tmp_path, monkeypatch, more, told):
    monkeypatch.setenv("CI", "1")
    (tmp_path / "test_toy.py").write_text(LONGER + more)
    wrong = TESTS.run(None, str(tmp_path / "test_toy.py"), "seed 3").wrong
    assert told in wrong
    assert bool(wrong) == bool(told)


def test_what_is_longer(monkeypatch):
    monkeypatch.setattr(thorough, "THOROUGH", False)
    assert (thorough.examples(3), thorough.also("more")) == (3, ())
    monkeypatch.setattr(thorough, "THOROUGH", True)
    assert (thorough.examples(3), thorough.also("more")) == (60, ("more",))
