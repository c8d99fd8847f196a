"""The examination of data sets with known sizes, volumes and intensities, with exchanged modalities, and with bad files."""

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from lms3d.data.brats import layouts
from lms3d.data.prepare import main
from lms3d.data.volumes import fingerprint
from tests.data.small_data import random_case, save, write_case

# Like brains: t1 and t1ce go together, t2 against them, flair with a part of t2.
MIX = {"t1": (1.0, 0.0), "t1ce": (0.9, 0.1), "flair": (0.3, 0.7), "t2": (-1.0, 0.4)}


def brain(seed: int) -> dict[str, np.ndarray]:
    """A random case whose modalities are correlated as in brains."""
    arrays, random = random_case(seed), np.random.default_rng(seed)
    tissue, water = (random.normal(size=arrays["t1"].shape) for _ in range(2))
    for channel, (a, b) in MIX.items():
        values = 500 + 100 * (a * tissue + b * water) + 20 * random.normal(size=tissue.shape)
        arrays[channel] = np.where(arrays[channel] > 0, values, 0).astype(np.int16)
    return arrays


@pytest.fixture
def brains(tmp_path):
    for number in range(1, 7):
        write_case(tmp_path / "set" / f"BraTS20_Training_{number:03d}", brain(number))
    return tmp_path / "set"


def examined(root, where, **options):
    cases, schema = layouts.find_cases(root, require_truth=False)
    return fingerprint.examine(cases, schema, directory=where, workers=1, **options)


def test_known_numbers(brains, tmp_path):
    table = examined(brains, tmp_path / "c").set_index("case")
    row = table.loc["BraTS20_Training_001"]
    assert [row[f"size_{axis}"] for axis in "xyz"] == [17, 19, 14]  # the noise fills 15 x 17 x 12
    assert [row[f"spacing_{axis}_mm"] for axis in "xyz"] == [1, 1, 1]
    truth = random_case(1)["truth"]
    assert row["ED_ml"] == pytest.approx((truth == 2).sum() / 1000)
    images = brain(1)
    assert row["t2_p50"] == pytest.approx(np.median(images["t2"][images["t2"] != 0]), abs=1)
    assert row["correlation_t1_t1ce"] > 0.8
    assert row["correlation_t1_t2"] < -0.5


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_differences_beyond_float32_are_no_warning_of_numpy(tmp_path):
    arrays = random_case(1)
    arrays["t1"] = np.where(np.arange(arrays["t1"].size).reshape(arrays["t1"].shape) % 2, 3e38, -3e38).astype(
        np.float32
    )
    write_case(tmp_path / "set" / "BraTS20_Training_001", arrays)
    (case,), schema = layouts.find_cases(tmp_path / "set")
    of_case = fingerprint.facts(case, schema)
    assert (of_case["t1_p1"], of_case["t1_p99"]) == pytest.approx((-3e38, 3e38))


def test_an_exchanged_pair_is_told_and_no_other(brains, tmp_path):
    assert fingerprint.suspicious_swaps(examined(brains, tmp_path / "c")) == {}
    arrays = brain(3)
    arrays["flair"], arrays["t1ce"] = arrays["t1ce"], arrays["flair"]
    write_case(brains / "BraTS20_Training_003", arrays)
    table = examined(brains, tmp_path / "c")
    assert fingerprint.suspicious_swaps(table) == {"BraTS20_Training_003": ("t1ce", "flair")}
    assert "look at BraTS20_Training_003: t1ce and flair may be exchanged" in fingerprint.as_text(table)


def test_cases_whose_axes_lead_elsewhere_are_told(brains, tmp_path):
    assert "\naxes LPS\n" in fingerprint.as_text(examined(brains, tmp_path / "c"))
    for path in (brains / "BraTS20_Training_003").iterdir():
        save(np.asarray(nib.load(path).dataobj), path, np.eye(4))
    told = fingerprint.as_text(examined(brains, tmp_path / "c"))
    assert "look at the axes: LPS in 5 cases, RAS in 1 case; cases stay as they are" in told


def test_of_many_cases_that_look_wrong_in_the_same_way_the_first_are_told(brains, tmp_path):
    row = examined(brains, tmp_path / "c").iloc[0].to_dict() | {"t2_corner": -1024.0, "t1_spread": 0.5}
    table = pd.DataFrame([row | {"case": f"c{number:04d}"} for number in range(1250)])
    lines = [line for line in fingerprint.as_text(table).splitlines() if line.startswith("look at")]
    first, more = [f"look at c{number:04d}" for number in range(5)], "look at 1245 more like these"
    assert [line[:13] for line in lines] == [*first, more[:13]] * 2
    assert lines[5] == lines[11] == more
    few = fingerprint.as_text(table[:5])
    assert (few.count("look at c"), few.count("more like these")) == (10, 0)


def test_a_second_examination_reads_nothing_and_a_stopped_one_goes_on(brains, tmp_path, record):
    calls, progress = record
    first = examined(brains, tmp_path / "c")
    assert examined(brains, tmp_path / "c", progress=progress).equals(first)
    assert not calls
    next((tmp_path / "c").rglob("BraTS20_Training_002.json")).unlink()
    assert examined(brains, tmp_path / "c", progress=progress).equals(first)
    assert calls[-1] == (1, 1, "examining")


def test_a_bad_case_is_in_the_table_and_the_rest_is_examined(brains, tmp_path):
    bad = brains / "BraTS20_Training_004" / "BraTS20_Training_004_t1.nii.gz"
    bad.write_bytes(b"no image")
    table = examined(brains, tmp_path / "c").set_index("case")
    assert str(bad) in table.loc["BraTS20_Training_004", "problem"]
    told = fingerprint.as_text(table.reset_index())
    assert "5 of 6 cases can be used" in told
    assert f"cannot be used: {bad}" in told


def test_other_spacings_are_counted_in_millilitres(tmp_path):
    arrays = brain(1)
    write_case(tmp_path / "set" / "BraTS20_Training_001", arrays)
    for path in (tmp_path / "set").rglob("*.nii.gz"):
        image = nib.load(path)
        save(np.asarray(image.dataobj), path, np.diag([2.0, 1.0, 1.0, 1.0]))
    row = examined(tmp_path / "set", tmp_path / "c").iloc[0]
    assert row["ET_ml"] == pytest.approx(2 * (arrays["truth"] == 4).sum() / 1000)


def test_the_command_tells_it_and_leaves_out_on_request(brains, tmp_path, capsys):
    arguments = [str(brains), "--cache", str(tmp_path / "c"), "--workers", "1"]
    assert main([*arguments, "--examine"]) == 0
    told = capsys.readouterr().out
    assert "median            17   19   14" in told
    assert "6 of 6 cases can be used" in told
    (brains / "BraTS20_Training_004" / "BraTS20_Training_004_t1.nii.gz").write_bytes(b"no image")
    assert main([*arguments, "--box", "16x32x16"]) == 2
    refused = capsys.readouterr().err
    assert "BraTS20_Training_004_t1.nii.gz" in refused
    assert "--skip-bad" in refused
    assert main([*arguments, "--box", "16x32x16", "--skip-bad"]) == 0
    assert "skipped: 1 case, listed in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--box", "16x16"], "--box: found '16x16'; expected three sides"),
        (["--box", "16xfoox16x16"], "--box: found '16xfoox16x16'; expected three sides"),
        (["--box", "16x20x16"], "--box: found 20; expected a multiple of 16"),
        (["--box", "16x16x16", "--resolution", "32"], "--box: found --resolution, too"),
    ],
)
def test_wrong_boxes(brains, tmp_path, capsys, options, expected):
    assert main([str(brains), "--cache", str(tmp_path / "c"), *options]) == 2
    assert expected in capsys.readouterr().err
