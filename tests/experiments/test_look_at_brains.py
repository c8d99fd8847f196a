import matplotlib.image
import numpy as np
from matplotlib.figure import Figure

from lms3d.experiments import look_at_brains
from tests.data.small_data import random_case, write_case


def test_a_row_for_each_case_and_a_line_for_each_label(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (drawn.append(self), save(self, *args, **more)))
    for number in range(1, 4):
        write_case(tmp_path / "set" / f"BraTS20_Training_{number:03d}", random_case(number))
    picture = tmp_path / "brains.png"
    assert look_at_brains.main(["--data", str(tmp_path / "set"), "--cases", "2", "--output", str(picture)]) == 0
    assert picture.stat().st_size > 10_000
    (figure,) = drawn
    assert len(figure.axes) == (2 + 1) * 4
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[-1].lines}
    assert list(lines) == ["rest", "NCR", "ED", "ET"]
    assert np.isclose(sum(lines["rest"]), 1)


def test_it_draws_every_distortion(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))
    write_case(tmp_path / "set" / "BraTS20_Training_001", random_case(1))
    picture, words = tmp_path / "d.png", ["--distorted", "--resolution", "32"]
    assert look_at_brains.main([*words, "--data", str(tmp_path / "set"), "--output", str(picture)]) == 0
    assert matplotlib.image.imread(picture).shape[1] > 800
    assert "written" in capsys.readouterr().out


def test_wrong_input_is_one_line(tmp_path, capsys):
    assert look_at_brains.main(["--data", str(tmp_path)]) == 2
    assert "found no case" in capsys.readouterr().err
