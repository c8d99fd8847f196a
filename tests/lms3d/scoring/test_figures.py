"""Figures are checked by their elements, not by pixels."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from lms3d.errors import StorageError
from lms3d.scoring.figures import curves, mosaic, paired, slices, steps, style

ROWS = [
    {"epoch": e, "loss": -e / 9, "val_loss": -e / 10, "learning_rate": 5e-4, "val_dice_WT": e / 9, "dice_WT": e / 8}
    for e in (1, 2, 3)
]


def test_training_curves(tmp_path, drawn):
    path = curves.training_curves(ROWS, tmp_path / "a/training.png")
    assert path.stat().st_size > 10_000
    loss, dice, rate = drawn[0].axes
    assert [line.get_label() for line in loss.lines] == ["training", "validation"]
    np.testing.assert_allclose(dice.lines[1].get_ydata(), [1 / 9, 2 / 9, 3 / 9])
    assert rate.get_yscale() == "log"
    assert all(axis.get_xlabel() == "epoch" and axis.get_ylabel() for axis in drawn[0].axes)


def test_curves_without_regions(tmp_path, drawn):
    curves.training_curves([{"epoch": 1, "loss": 1, "val_loss": 2, "learning_rate": 1}], tmp_path / "training.png")
    assert len(drawn[0].axes) == 2


def test_memory_timeline(tmp_path, drawn):
    gib = 2**30
    steps.memory_timeline(
        [gib, 2 * gib, gib], [gib, 5 * gib], tmp_path / "m.png",
        limit_bytes=3 * gib, measured_peak_bytes=None, title="t",
    )  # fmt: skip
    axis = drawn[0].axes[0]
    heights = {line.get_label(): max(line.get_ydata()) for line in axis.lines}
    assert heights == {"without LMS (predicted)": 5, "this run (predicted)": 2, "memory limit, 3.00 GiB": 3}
    assert axis.get_ylim()[1] > 5


def test_a_distant_limit_does_not_flatten_the_curves(tmp_path, drawn):
    steps.memory_timeline([1e9], [], tmp_path / "m.png", limit_bytes=10**12, measured_peak_bytes=10**9, title="t")
    assert drawn[0].axes[0].get_ylim()[1] < 2


def test_step_timeline(tmp_path, drawn):
    gib = 2**30
    steps.step_timeline(
        tmp_path / "t.png", memory=([0, 1], [gib, 2 * gib]), unedited_memory=([0, 1], [gib, 4 * gib]),
        lanes={"compute": [(0, 1), (1.5, 2)], "swap out": [(1, 1.5)], "waiting": []}, limit_bytes=3 * gib, title="t",
    )  # fmt: skip
    above, below = drawn[0].axes
    assert [text.get_text() for text in below.texts] == ["1.5 s", "500 ms", "0 ms"]
    assert [label.get_text() for label in below.get_yticklabels()] == ["compute", "swap out", "waiting"]
    assert above.get_xlim() == (0, 2)
    assert "predicted" in above.get_title()


def test_pareto(tmp_path, drawn):
    gib = 2**30
    steps.pareto(
        tmp_path / "p.png", curves={"a": [(gib, 1.2), (2 * gib, 1.0)], "b": []},
        points={"near": (gib, 1.1), "slow": (gib, 9.0)}, floor_bytes=gib, fit_bytes=2 * gib, unedited_seconds=1.0, title="t",
    )  # fmt: skip
    axis = drawn[0].axes[0]
    labels = [line.get_label() for line in axis.lines]
    assert {"a", "b", "near", "slow (9 s, far above)", "step time without LMS"} <= set(labels)
    slow = axis.lines[labels.index("slow (9 s, far above)")]
    assert slow.get_ydata()[0] == axis.get_ylim()[1] < 2  # at the edge, so that the curves stay readable
    assert [text.get_text() for text in axis.texts] == ["floor with LMS\n1.00 GiB", "fits without LMS\n2.00 GiB"]
    np.testing.assert_allclose(axis.lines[0].get_xdata(), [1, 2])


def test_slice_with_most_tumour(tmp_path, drawn):
    masks = {"WT": np.zeros((8, 9, 10), bool), "ET": np.zeros((8, 9, 10), bool)}
    masks["WT"][2:5, 3:6, 7] = True
    assert slices.best_slice(masks) == 7
    image = np.random.default_rng(0).random((8, 9, 10))
    slices.slice_with_outlines(image, masks, masks, tmp_path / "s.png", title="t")
    assert [axis.get_title() for axis in drawn[0].axes] == ["FLAIR", "truth", "prediction"]
    assert [len(axis.collections) for axis in drawn[0].axes] == [0, 1, 1]
    assert "slice 8 of 10" in drawn[0].get_suptitle()


def test_no_tumour():
    assert slices.best_slice({"WT": np.zeros((4, 4, 6), bool)}) == 3


def test_of_many_regions_the_largest_differences_are_drawn():
    table = pd.DataFrame({"region": [str(n) for n in range(60)], "difference": [(-1) ** n * n for n in range(60)]})
    assert list(paired._drawn(table)["region"]) == [str(n) for n in range(36, 60)]


def test_long_names_are_broken_where_words_end():
    assert style.in_lines("Enhancing tumour (ET)", 22) == "Enhancing tumour (ET)"
    assert style.in_lines("left_adrenal_gland upper part", 12) == "left_\nadrenal_\ngland upper\npart"
    assert style.in_lines("x" * 30, 12) == "x" * 30


def test_the_worst_cases_have_a_colour_for_each_region(tmp_path, drawn):
    masks = {name: np.zeros((8, 8, 4), bool) for name in ("liver", "spleen")}
    masks["liver"][1:4, 1:4], masks["spleen"][5:7, 5:7] = True, True
    tile = mosaic.Tile(image=np.zeros((8, 8, 4)), truth=masks, prediction=masks, title="a")
    mosaic.draw([tile], tmp_path / "worst.png", title="The worst", modality="CT")
    lines = {line.get_label(): line.get_color() for line in drawn[-1].legends[0].get_lines()}
    assert lines["liver"] != lines["spleen"]


def test_a_verdict_names_the_better_one():
    row = {"first": "144", "second": "192", "verdict": "second is better"}
    assert paired._verdict(row) == "192 is better"
    assert paired._verdict(row | {"verdict": "no difference shown"}) == "no difference shown"
    long = row | {"verdict": "second is better on these cases (one seed)"}
    assert paired._verdict(long) == "192 is better\non these cases\n(one seed)"


@pytest.mark.parametrize("ending", ["pdf", "png"])
def test_a_figure_on_a_full_disk_is_one_line(tmp_path, monkeypatch, ending):
    monkeypatch.setattr("lms3d.atomic_files.token", lambda: "x")
    (tmp_path / f".figure.x.partial.{ending}").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device; the previous version is intact"):
        style.write(plt.figure(), tmp_path / f"figure.{ending}")


def test_figures_are_drawn_in_memory(tmp_path):
    """`tests.stress files`, "evaluate label maps", write:scores/.dice_native.*.partial.pdf:2:EIO ended in an AttributeError of
    matplotlib, whose PDF writer closes an object that it could not make."""
    figure = SimpleNamespace(savefig=lambda target, **_: target.write(b"drawn"))  # a path has no such method
    style.write(figure, tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes() == b"drawn"


def test_a_png_and_its_pdf_share_one_layout(tmp_path, monkeypatch):
    laid_out: list[Figure] = []
    execute = ConstrainedLayoutEngine.execute
    monkeypatch.setattr(
        ConstrainedLayoutEngine, "execute", lambda self, figure: (laid_out.append(figure), execute(self, figure))
    )
    figure, axis = plt.subplots(figsize=(2, 2), layout="constrained")
    axis.set_ylabel("two\nlines that need room")
    paths = style.write_png_and_pdf(figure, tmp_path / "a.png")
    plt.close(figure)
    assert [path.name for path in paths] == ["a.png", "a.pdf"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[1].read_bytes().startswith(b"%PDF")
    assert len(laid_out) == 1
    assert axis.get_position().x0 > 0.2  # the room is left
