"""Each rule alone equals the whole op: float64, images and volumes, batches, any kernel and stride, even and uneven bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lms3d.engine.slabs.rules import RULES
from tests.lms3d.engine.slabs import array_cases, number_cases, test_random, test_streams, window_cases
from tests.lms3d.engine.slabs.cases import Case, check
from tests.thorough import examples

CASES = [*window_cases.CASES, *array_cases.CASES, *number_cases.CASES]
_EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
_FREE: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@_EACH
@given(st.data())
@settings(max_examples=examples(3), **_FREE)
def test_a_rule_equals_its_op(case: Case, data: st.DataObject) -> None:
    check(case, *data.draw(case.settings))


def test_planes_that_no_window_reads() -> None:
    """The input's gradient is zeros there. TensorFlow's op would end the process."""
    case = next(case for case in CASES if case.name == "convolution 3D")
    check(case, *window_cases.with_planes_that_no_window_reads())


def test_every_rule_has_a_case() -> None:
    with_cases = {kind for case in CASES for kind in case.types}
    assert set(RULES.names) - with_cases - {*test_random.TYPES, *test_streams.TYPES} == {
        "FusedBatchNormV3",
        "FusedBatchNormGradV3",
    }  # test_normalisation
