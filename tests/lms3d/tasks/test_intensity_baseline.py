"""The baseline without a network: its knowledge, the data that it ignores, and where a run shows it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from lms3d.errors import InputError
from lms3d.tasks.brats import intensity_baseline, task
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.volumes import figures

REGIONS = {"WT": (1, 2, 4), "ET": (4,)}


def brain(seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """A brain of noise with a bright ball, whose middle is brighter in the second sequence, and a small bright speck elsewhere."""
    rng = np.random.default_rng(seed)
    image = np.zeros((24, 24, 24, 4), np.float32)
    image[2:22, 2:22, 2:22] = 100 + 5 * rng.standard_normal((20, 20, 20, 4))
    distance = np.linalg.norm(np.indices((24, 24, 24)) - np.array([10, 11, 12]).reshape(3, 1, 1, 1), axis=0)
    truth = np.where(distance < 6, 2, 0).astype(np.uint8)
    truth[distance < 3] = 4
    image[truth > 0] += 60
    image[truth == 4, 1] += 60
    image[18:21, 18:21, 18:21] += 60  # labelled by nobody
    return image * scale, truth


def test_intensities_that_differ_are_enough_whatever_the_scanner_and_one_component_is_kept():
    analysis = intensity_baseline.fit([brain(seed, scale) for seed, scale in ((0, 1), (1, 7))])
    labels = intensity_baseline.segment(analysis, brain(2, 0.1)[0])
    assert not labels[17:22, 17:22, 17:22].any()
    found = intensity_baseline.scores(analysis, [brain(2, 0.1), brain(3)], REGIONS)
    assert len(found["WT"]) == 2
    assert min(found["WT"]) > 0.8
    assert min(found["ET"]) > 0.7


def test_intensities_that_do_not_differ_tell_nothing():
    def shuffled(seed: int) -> tuple[np.ndarray, np.ndarray]:
        image, truth = brain(seed)
        image[2:22, 2:22, 2:22] = (
            np.random.default_rng(seed).permutation(image[2:22, 2:22, 2:22].reshape(-1, 4)).reshape(20, 20, 20, 4)
        )
        return image, truth

    analysis = intensity_baseline.fit([shuffled(0), shuffled(1)])
    assert intensity_baseline.scores(analysis, [shuffled(2)], REGIONS)["WT"][0] < 0.3


def test_an_absent_sequence_and_a_label_of_one_voxel_do_not_matter():
    image, truth = brain(0)
    image[..., 3] = 0
    truth[4, 4, 4] = 1
    analysis = intensity_baseline.fit([(image, truth)])
    assert set(analysis.classes_) == {0, 2, 4}
    assert intensity_baseline.scores(analysis, [(image, truth)], REGIONS)["WT"][0] > 0.8


def test_cases_without_a_tumour_are_refused():
    with pytest.raises(InputError, match="found no tumour"):
        intensity_baseline.fit([(brain(0)[0], np.zeros((24, 24, 24), np.uint8))])


def test_a_run_on_the_embedded_brains_shows_it_in_its_summary(tmp_path, monkeypatch):
    made = {str(seed): brain(seed) for seed in range(3)}
    cache = SimpleNamespace(
        image=lambda case: made[case][0], truth=lambda case: made[case][1], schema=SimpleNamespace(regions=REGIONS)
    )
    material = SimpleNamespace(cache=cache, split=SimpleNamespace(training=["0", "1"], validation=["2"]))
    monkeypatch.setattr(figures, "draw_slice", lambda *_: None)
    history = SimpleNamespace(rows=[])
    for data, shown in ((tmp_path, False), (None, True)):
        task.TASK.finish(tmp_path, BratsConfig(data=data), None, material, None)
        assert ("intensities alone" in task.TASK.results(tmp_path, history)) == shown
    means = json.loads((tmp_path / intensity_baseline.FILE).read_text())
    row = task.TASK.results(tmp_path, history)["intensities alone"]
    assert row == f"validation Dice WT {means['WT']:.3f}  ET {means['ET']:.3f}, without a network"
