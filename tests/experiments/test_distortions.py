"""The picture of the distortions."""

import matplotlib.image
import pytest

from lms3d.experiments import distortions
from tests.data.small_data import random_case, write_case


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))


def test_it_draws_every_distortion(tmp_path, capsys):
    write_case(tmp_path / "set" / "BraTS20_Training_001", random_case(1))
    picture = tmp_path / "d.png"
    assert distortions.main(["--data", str(tmp_path / "set"), "--resolution", "32", "--output", str(picture)]) == 0
    assert matplotlib.image.imread(picture).shape[1] > 800
    assert "written" in capsys.readouterr().out


def test_wrong_input_is_one_line(tmp_path, capsys):
    assert distortions.main(["--data", str(tmp_path)]) == 2
    assert "found no case" in capsys.readouterr().err
