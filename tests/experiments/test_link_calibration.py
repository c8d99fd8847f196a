"""Two runs over an emulated link, and what they say of the others: fitting by hand, and curves of real plans of a toy step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.engine import edit
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.simulate import simulate
from lms3d.experiments.links import calibration
from lms3d.experiments.links.calibration import SLOWNESS, Curve
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, training

STATED = SLOWNESS.index(1.0)
MACHINE = replace(SECONDS, flops_per_second=8 * MIB)  # a convolution of the toy step takes as long as a transfer


def of(name, limit_mib, *, compute, link):
    """A run of a toy step on a machine that is slower than predicted: its link by `compute` x `link`, all else by `compute`."""
    request = Settings(limit_bytes=int(limit_mib * MIB)).request(training(8), MACHINE, with_floor=False)
    plan, report = make_plan(request)
    seconds = calibration.seconds_by_slowness(request.graph, plan, MACHINE, report.predicted_step_seconds)
    slow = calibration._slower(MACHINE, link)
    edited = edit.apply(request.graph, plan)
    took = report.predicted_step_seconds + simulate(edited, slow).seconds - simulate(edited, MACHINE).seconds
    return Curve(name=name, seconds=tuple(seconds), measured_seconds=compute * took), report


def test_a_curve_is_the_prediction_at_the_stated_rate_and_rises_with_the_slowness():
    curve, report = of("tight", 8, compute=1, link=1)
    assert curve.seconds[STATED] == pytest.approx(report.predicted_step_seconds)
    assert list(curve.seconds) == sorted(curve.seconds)
    assert curve.seconds[-1] > 1.5 * curve.seconds[STATED]


@pytest.mark.parametrize(("compute", "link"), [(1.0, 1.0), (1.3, 2.0), (0.8, 0.5), (1.1, 6.0)])
def test_two_runs_predict_a_third(compute, link):
    runs = [of(name, limit, compute=compute, link=link)[0] for name, limit in (("wide", 14), ("tight", 7))]
    found = calibration.calibrate(runs)
    assert found.on == ("wide", "tight")
    third = of("between", 10, compute=compute, link=link)[0]
    assert found.error(third) == pytest.approx(0, abs=0.02)
    if (compute, link) == (1.1, 6.0):  # as stated it would be far from that
        assert third.at(1.0) / third.measured_seconds < 0.7


def test_where_no_run_depends_on_the_link_it_counts_as_stated():
    still = [Curve(name=name, seconds=(2.0,), measured_seconds=3.0) for name in "ab"]
    found = calibration.calibrate(still)
    assert found.link == pytest.approx(1.0, rel=0.01)
    assert found.compute == pytest.approx(1.5)


def test_reports_that_say_too_little_have_no_curve():
    report = {"unedited_step_seconds": 2.0, "predicted_step_seconds": 3.0}
    assert calibration.curve("recomputes", report, 1.6).measured_seconds == pytest.approx(3.2)
    assert calibration.curve("not measured", report, None) is None
    assert calibration.curve("no prediction", {}, 1.6) is None
    assert calibration.curve("swaps, of an older run", report | {"swapped_out_bytes": 5}, 1.6) is None
    by_slowness = [1.0] * len(SLOWNESS)
    assert calibration.curve("swaps", report | {"seconds_by_slowness": by_slowness}, 1.6).at(2.0) == 1.0
