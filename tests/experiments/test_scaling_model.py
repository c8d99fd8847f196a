"""The model of communication, stragglers and indivisible data, and its check against Table 7."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lms3d.experiments.scalability import case_study, model, probe
from lms3d.experiments.scalability.case_study import INDEPENDENT, JOB
from lms3d.experiments.scalability.model import WEAK, Cluster, RingLink, predict

LINK = RingLink(bytes_per_second=1e9, latency_seconds=1e-3)


def test_a_ring_moves_every_part_twice():
    assert model.ring_seconds(1, 4e9, LINK) == 0
    assert model.ring_seconds(4, 4e9, LINK) == pytest.approx(2 * 3 / 4 * 4 + 6e-3)


def test_nodes_share_the_network_and_a_node_needs_none():
    fast = RingLink(bytes_per_second=1e11, latency_seconds=0)
    assert model.hierarchical_seconds(4, 4, 1e9, fast, LINK) == pytest.approx(1.5 * 0.01)
    assert model.hierarchical_seconds(8, 4, 1e9, fast, LINK) == pytest.approx(1.5 * 0.01 + 1 + 2e-3)


def test_a_link_is_found_again_from_its_all_reduces():
    sizes = [2.0**k for k in range(10, 26, 3)]
    found = model.fit_link(4, sizes, [model.ring_seconds(4, size, LINK) for size in sizes])
    assert (found.bytes_per_second, found.latency_seconds) == pytest.approx((1e9, 1e-3))
    with pytest.raises(ValueError, match="expected at least two"):
        model.fit_link(1, sizes, sizes)


def test_a_busy_machine_gives_a_bound_and_no_bandwidth_that_no_link_has():
    sizes, seconds = [1e3, 1e5, 1e7, 3e7], [0.030, 0.031, 0.025, 0.028]
    found = model.fit_link(2, sizes, seconds)
    assert found.at_least
    assert found.bytes_per_second == pytest.approx(3e7 / 0.028)  # two members: each byte goes once
    assert 0.005 < found.latency_seconds < 0.02
    measured = probe.Probe(ranks=2, all_reduces=tuple(zip(map(int, sizes), seconds, strict=True)), link=found)
    assert "At least 1.00 GiB/s" in measured.markdown()
    assert "other work hides the bandwidth" in measured.markdown()


@pytest.mark.parametrize(("members", "known"), [(1, 0.0), (2, 0.56419), (4, 1.02938), (16, 1.76599), (1000, 3.24144)])
def test_the_expected_maximum_of_normals(members, known):
    assert model.expected_maximum(members) == pytest.approx(known, abs=2e-4)  # tables of order statistics


def test_stragglers_are_what_a_simulation_of_ranks_in_step_gives():
    steps = 1 + 0.05 * np.random.default_rng(0).standard_normal((4000, 16))
    machine = Cluster(
        ranks_per_node=16, local=RingLink(bytes_per_second=1e30, latency_seconds=0), network=LINK, cv=0.05
    )
    job = replace(JOB, step_seconds=1.0)
    assert predict(job, machine, 16).step_seconds == pytest.approx(steps.max(axis=1).mean(), rel=2e-3)


def test_the_backward_pass_hides_communication_up_to_its_length():
    machine = Cluster(ranks_per_node=1, local=LINK, network=LINK)
    job = replace(
        JOB, step_seconds=3.0, gradient_bytes=2_000_000_000
    )  # 2.002 s on two ranks; the backward pass has 2 s
    exposed = {overlap: predict(replace(job, overlap=overlap), machine, 2).exposed_seconds for overlap in (0, 0.5, 1)}
    assert exposed == pytest.approx({0: 2.002, 0.5: 1.002, 1: 0.002})


def test_the_case_study_s_split_wastes_five_per_cent_at_16_and_one_order_nothing():
    fixed, ours = model.account(228, 16, distribution=model.FIXED), model.account(228, 16)
    assert (fixed.steps, fixed.needed_steps, fixed.efficiency) == (15, 14.25, 0.95)
    assert (ours.steps, ours.efficiency, ours.passes_per_epoch) == (14, 1.0, pytest.approx(224 / 228))


@pytest.mark.parametrize("ranks", [1, 3, 7, 16, 228, 1024])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_accounts_are_what_dealing_out_samples_gives(ranks, batch):
    samples = 228
    fullest = max(len(range(rank, samples, ranks)) for rank in range(ranks))
    assert model.account(samples, ranks, batch, distribution=model.FIXED).steps == int(np.ceil(fullest / batch))
    assert model.account(samples, ranks, batch).steps == max(1, int(np.floor(samples / (ranks * batch) + 0.5)))


def test_an_epoch_is_counted_as_the_trainer_counts_it():
    from lms3d.ranks.world import World

    for ranks, batch in ((1, 1), (2, 1), (8, 1), (16, 1), (16, 4), (64, 1), (1024, 1)):
        assert World(size=ranks).training_steps(228, batch) == model.account(228, ranks, batch).steps


def test_table_7_within_three_per_cent_with_nothing_fitted_one_parameter_and_each_row_left_out():
    for ranks, measured in case_study.EFFICIENCY.items():
        others = case_study.fitted([other for other in case_study.EFFICIENCY if other != ranks])
        for machine in (INDEPENDENT, case_study.fitted(), others):
            assert abs(case_study.efficiency(machine, ranks) / measured - 1) < 0.03


def test_table_7_is_what_its_seconds_give():
    for ranks, share in case_study.EFFICIENCY.items():
        assert case_study.EPOCH_SECONDS[1] / case_study.EPOCH_SECONDS[ranks] / ranks == pytest.approx(share, abs=5e-5)


def test_one_order_reaches_97_per_cent_at_16_in_the_calibrated_model():
    ours = predict(JOB, case_study.fitted(), 16, distribution=model.ONE_ORDER)
    theirs = predict(JOB, case_study.fitted(), 16, distribution=model.FIXED)
    assert ours.efficiency >= 0.97
    assert theirs.efficiency == pytest.approx(0.95 * ours.efficiency)  # all of the difference is the split
    assert ours.speed_up == pytest.approx(16 * ours.efficiency)


def test_the_fit_has_one_parameter_and_uses_the_rows_that_it_is_given():
    fitted = case_study.fitted()
    assert replace(fitted, cv=INDEPENDENT.cv) == INDEPENDENT
    assert case_study.fitted([16]).cv > fitted.cv > case_study.fitted([4, 8]).cv
    assert case_study.efficiency(case_study.fitted([16]), 16) == pytest.approx(0.9219, abs=2e-4)


def test_efficiency_falls_with_more_ranks_and_weak_scaling_knows_no_remainder():
    strong, weak = (
        [predict(JOB, case_study.fitted(), n, scaling=s).efficiency for n in (1, 4, 16, 64, 1024)]
        for s in ("strong", WEAK)
    )
    assert weak == sorted(weak, reverse=True)
    assert weak[0] == 1.0
    assert strong == weak  # by samples per second one order wastes nothing
    assert predict(JOB, case_study.fitted(), 1024, distribution=model.FIXED).efficiency < 0.25  # most have no subject
    assert predict(JOB, case_study.fitted(), 1, scaling=WEAK).pass_seconds == pytest.approx(590)
    assert predict(JOB, case_study.fitted(), 16, scaling=WEAK).pass_seconds == pytest.approx(590 / weak[2])


def test_the_report_says_what_was_fitted():
    text = case_study.report()
    row = next(line for line in text.splitlines() if line.startswith("| 16 | 92.19 %"))
    assert "(-0." in row or "(+0." in row
    assert row.endswith("| 96.83 % | 97.79 % |")
    assert "one free parameter" in text
