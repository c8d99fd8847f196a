"""ChestX-ray14 is read from disk, and every fault is reported in one line."""

import csv
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lms3d.data import prepare
from lms3d.data.chest_xray import collection as chest_xray
from lms3d.data.chest_xray import patient_split, png
from lms3d.data.chest_xray.collection import FINDINGS, Collection, Radiograph
from lms3d.data.errors import DataError
from tests.data.small_radiographs import file_of, many, png_bytes, random_image, row, write_set

NIH_HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)


@pytest.fixture
def small_set(tmp_path):
    rows = many(12)
    return write_set(tmp_path / "set", rows, test=[name for name in rows if int(name[:8]) % 4 == 0])


@pytest.mark.parametrize(
    ("header", "table"),
    [
        (NIH_HEADER, "Data_Entry_2017.csv"),
        ("\ufeff" + NIH_HEADER, "Data_Entry_2017.csv"),
        (NIH_HEADER.rstrip(","), "Data_Entry_2017_v2020.csv"),
    ],
)
def test_the_table_as_it_was_published(tmp_path, header, table):
    rows = {"00000001_000.png": "No Finding", "00000001_001.png": "Mass|Atelectasis", "00000002_000.png": "Hernia"}
    found = chest_xray.find_images(write_set(tmp_path, rows, header=header, table=table))
    assert found.problems == ()
    assert found.test is None
    assert list(found.images) == list(rows)
    assert [image.findings for image in found.images.values()] == [(), ("Atelectasis", "Mass"), ("Hernia",)]
    assert [image.patient for image in found.images.values()] == ["1", "1", "2"]
    assert {image.path.parent.parent.name for image in found.images.values()} == {"images_001", "images_002"}


def test_classes_are_in_the_published_order():
    assert " ".join(FINDINGS) == (
        "Atelectasis Cardiomegaly Effusion Infiltration Mass Nodule Pneumonia Pneumothorax Consolidation Edema "
        "Emphysema Fibrosis Pleural_Thickening Hernia"
    )


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_any_number_of_channels_and_bits_gives_the_same_grey(tmp_path, channels, bits):
    grey = random_image(1)
    wide = grey.astype(np.uint16) * 257 if bits == 16 else grey
    alpha = np.full_like(wide, np.iinfo(wide.dtype).max)
    planes = {1: [wide], 2: [wide, alpha], 3: [wide] * 3, 4: [wide] * 3 + [alpha]}[channels]
    (tmp_path / "x.png").write_bytes(png_bytes(np.dstack(planes)))
    read = png.read_grey(tmp_path / "x.png")
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, grey)
    assert png.read_grey(tmp_path / "x.png", 17).shape == (17, 17)


def test_palettes_and_single_bits(tmp_path):
    grey = random_image(2)
    Image.fromarray(grey).convert("P").save(tmp_path / "p.png")
    Image.fromarray(grey).convert("1", dither=Image.Dither.NONE).save(tmp_path / "1.png")
    np.testing.assert_array_equal(png.read_grey(tmp_path / "p.png"), grey)
    np.testing.assert_array_equal(png.read_grey(tmp_path / "1.png"), np.where(grey >= 128, 255, 0))


def test_resizing_keeps_the_mean_of_every_area(tmp_path):
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 200  # the worst case for aliasing: picking every eighth column would give 0 or 200
    png.write(stripes, tmp_path / "x.png")
    assert abs(png.read_grey(tmp_path / "x.png", 8).astype(int) - 100).max() <= 7


@pytest.mark.parametrize("kept", [0, 7, 20, 60, 700, -30, -12])
def test_a_truncated_png_is_named(tmp_path, kept):
    path = tmp_path / "x.png"
    path.write_bytes(png_bytes(random_image(3))[:kept])
    with pytest.raises(DataError) as caught:
        png.read_grey(path)
    assert str(caught.value).startswith(f"{path}: found a file that cannot be read (")
    assert "expected a whole PNG image; copy the file again, or leave it out" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [18, 45, 300, 1200])
def test_a_damaged_byte_is_found(tmp_path, place):
    content = bytearray(png_bytes(random_image(3)))
    content[place] ^= 0x10
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        png.read_grey(tmp_path / "x.png")


def test_other_formats_and_absent_files(tmp_path):
    Image.fromarray(random_image(1)).save(tmp_path / "x.png", format="JPEG")
    with pytest.raises(DataError, match="cannot be read"):
        png.read_grey(tmp_path / "x.png")
    with pytest.raises(DataError, match=r"y.png: found nothing; expected a PNG image"):
        png.read_grey(tmp_path / "y.png")


def remove_image(root):
    file_of(root, "00000002_001.png").unlink()


def add_image(root):
    png.write(random_image(9), root / "images_001" / "images" / "00000099_000.png")


def copy_image(root):
    shutil.copy(file_of(root, "00000003_000.png"), root / "images_002")


def repeat_row(root):
    table = root / "Data_Entry_2017.csv"
    table.write_text(table.read_text() + row("00000003_000.png", "Mass") + ",\n")


def new_label(root):
    table = root / "Data_Entry_2017.csv"
    table.write_text(table.read_text().replace("Hernia", "Hernla", 1))


def contradict(root):
    table = root / "Data_Entry_2017.csv"
    table.write_text(table.read_text().replace("Hernia", "No Finding|Hernia", 1))


def repeat_label(root):
    table = root / "Data_Entry_2017.csv"
    table.write_text(table.read_text().replace("Hernia", "Hernia|Hernia", 1))


def unlist(root):
    path = root / "train_val_list.txt"
    path.write_text(path.read_text().replace("00000002_001.png\n", ""))


def list_stranger(root):
    path = root / "test_list.txt"
    path.write_text(path.read_text() + "00000777_000.png\n")


def list_twice(root):
    path = root / "train_val_list.txt"
    path.write_text(path.read_text() + "00000002_001.png\n")


def list_in_both(root):
    path = root / "test_list.txt"
    path.write_text(path.read_text() + "00000002_001.png\n")


def divide_patient(root):
    unlist(root)
    list_in_both(root)


@pytest.mark.parametrize(
    ("damage", "image", "line"),
    [
        (remove_image, "00000002_001.png", "line 5: found 00000002_001.png, which is not in {root} or a folder below"),
        (add_image, "00000099_000.png", "00000099_000.png: found an image without a row in Data_Entry_2017.csv"),
        (copy_image, "00000003_000.png", "found a second file of the name 00000003_000.png; expected it once"),
        (repeat_row, "00000003_000.png", "line 26: found 00000003_000.png a second time; expected a row per image"),
        (new_label, "00000001_001.png", "line 3: found label 'Hernla' for 00000001_001.png; expected 'No Finding'"),
        (contradict, "00000001_001.png", "found 'No Finding' beside a finding for 00000001_001.png"),
        (repeat_label, "00000001_001.png", "found label 'Hernia' twice for 00000001_001.png"),
        (unlist, "00000002_001.png", "00000002_001.png: found an image in no list; expected it in train_val_list.txt"),
        (list_stranger, "00000777_000.png", "test_list.txt: found 00000777_000.png, which has no row in the table"),
        (list_twice, "00000002_001.png", "train_val_list.txt: found 00000002_001.png; expected it in one list, once"),
        (list_in_both, "00000002_001.png", "it is already in train_val_list.txt"),
        (divide_patient, "00000002_000.png", "found 00000002_000.png of patient 2, who is in the test list too"),
    ],
)
def test_every_defect_is_one_line_and_takes_out_its_image(small_set, damage, image, line):
    assert chest_xray.find_images(small_set).problems == ()
    damage(small_set)
    found = chest_xray.find_images(small_set)
    assert {problem.image for problem in found.problems} == {image}
    assert line.format(root=small_set) in found.problems[0].line
    assert "\n" not in found.problems[0].line
    assert image not in found.images
    with pytest.raises(DataError) as caught:
        chest_xray.require_sound(found.problems)
    assert str(caught.value).startswith(found.problems[0].line)


def test_a_set_that_cannot_be_read_at_all(small_set, tmp_path):
    (small_set / "test_list.txt").rename(tmp_path / "test_list.txt")
    with pytest.raises(DataError, match=r"found train_val_list.txt alone; expected test_list.txt beside it"):
        chest_xray.find_images(small_set)
    table = small_set / "Data_Entry_2017.csv"
    table.write_text(table.read_text().replace("Patient ID", "Patient"))
    with pytest.raises(DataError, match="found no column 'Patient ID'; expected the columns Image Index"):
        chest_xray.find_images(small_set)
    table.write_text(NIH_HEADER + "\n00000001_000.png,Mass\n")
    with pytest.raises(DataError, match="line 2: found a row that ends early"):
        chest_xray.find_images(small_set)
    table.unlink()
    assert not chest_xray.is_chest_xray(small_set)
    with pytest.raises(DataError, match=r"found no Data_Entry_2017.csv"):
        chest_xray.find_images(small_set)


def collection(tmp_path, patients: list[int], test: frozenset[str] | None = None) -> Collection:
    images = {
        f"{p:08d}_{k:03d}.png": Radiograph(name="", path=tmp_path, patient=str(p), findings=())
        for k, p in enumerate(patients)
    }
    return Collection(root=tmp_path, images=images, test=test, problems=(), fingerprint="")


@given(st.lists(st.integers(1, 40), min_size=30, max_size=120).filter(lambda p: len(set(p)) > 8), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_no_patient_is_ever_in_two_parts(tmp_path_factory, patients, seed):
    whole = collection(tmp_path_factory.getbasetemp(), patients)
    parts = patient_split.parts(whole, seed=seed)
    assert sorted(name for names in parts.values() for name in names) == sorted(whole.images)
    groups = [{whole.images[name].patient for name in names} for names in parts.values()]
    assert all(groups)
    assert len(set.union(*groups)) == sum(map(len, groups))


def test_the_official_test_list_is_kept_and_the_rest_is_drawn_by_patient(small_set):
    found = chest_xray.find_images(small_set)
    parts = patient_split.parts(found)
    assert set(parts["test"]) == found.test == set((small_set / "test_list.txt").read_text().split())
    assert parts == patient_split.parts(found)
    assert len({tuple(patient_split.parts(found, seed=seed)["validation"]) for seed in range(8)}) > 1
    assert all(set(patient_split.parts(found, seed=seed)["test"]) == found.test for seed in range(3))


def test_shares_are_those_of_the_paper(tmp_path):
    parts = patient_split.parts(collection(tmp_path, list(range(1000))))
    assert {name: len(names) for name, names in parts.items()} == {"training": 700, "validation": 100, "test": 200}


def test_a_patient_in_two_parts_is_refused(tmp_path):
    with pytest.raises(DataError, match="found patient 7 in training and in test; expected every patient in one part"):
        patient_split.require_disjoint({"training": ["5", "7"], "validation": ["6"], "test": ["7"]}, tmp_path)


def test_the_fingerprint_follows_content_and_not_place(small_set, tmp_path):
    first = chest_xray.find_images(small_set).fingerprint
    moved = tmp_path / "elsewhere"
    shutil.copytree(small_set, moved)
    assert chest_xray.find_images(moved).fingerprint == first
    image = file_of(moved, "00000005_000.png")
    png.write(np.where(random_image(0) > 254, 0, png.read_grey(image)).astype(np.uint8), image)
    changed = chest_xray.find_images(moved).fingerprint
    assert changed != first
    new_label(moved)
    assert chest_xray.find_images(moved).fingerprint != changed


def test_prepare_stops_at_the_first_defect_or_skips_and_lists_them(small_set, tmp_path, capsys):
    arguments = [str(small_set), "--resolution", "32", "--cache", str(tmp_path / "c"), "--workers", "1"]
    add_image(small_set)
    truncated = file_of(small_set, "00000006_001.png")
    truncated.write_bytes(truncated.read_bytes()[:900])
    assert prepare.main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("data.prepare: error: ")
    assert "00000099_000.png: found an image without a row" in line
    file_of(small_set, "00000099_000.png").rename(tmp_path / "00000099_000.png")
    assert prepare.main(arguments) == 2
    assert "00000006_001.png: found a file that cannot be read" in capsys.readouterr().err
    (tmp_path / "00000099_000.png").rename(small_set / "00000099_000.png")
    assert prepare.main([*arguments, "--skip-bad"]) == 0
    out = capsys.readouterr().out
    assert "skipped: 2 images" in out
    with open(out.split("listed in ")[1].split("\n")[0], newline="") as stream:
        heading, *rows = csv.reader(stream)
    assert heading == ["image", "problem"]
    assert [row[0] for row in rows] == ["00000006_001.png", "00000099_000.png"]
    assert "cannot be read" in rows[0][1]
    assert prepare.main(arguments) == 2  # the user agreed once, not for ever
    assert "found 2 images that an earlier --skip-bad left out" in capsys.readouterr().err


def test_an_image_whose_name_is_no_utf8_is_left_out_and_listed(small_set, tmp_path):
    image = file_of(small_set, "00000006_001.png")
    shutil.copy(image, image.with_name("\udce9.png"))
    cache = ["--cache", str(tmp_path / "c"), "--workers", "1", "--skip-bad"]
    assert prepare.main([str(small_set), "--resolution", "32", *cache]) == 0
    (table,) = (tmp_path / "c").rglob("skipped.csv")
    assert "\n\\udce9.png," in table.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--resolution", "16"], "--resolution: found 16; expected 32 to 1024"),
        (["--n4"], "--n4: found chest X-rays in"),
        (["--no-anti-alias"], "--no-anti-alias: found chest X-rays in"),
        (["--anti-alias"], "leave --anti-alias out"),
        (["--examine"], "--examine: found chest X-rays in"),
        (["--labels", "brats2020"], "--labels: found chest X-rays in"),
    ],
)
def test_options_that_mean_nothing_here(small_set, capsys, options, expected):
    assert prepare.main([str(small_set), *options]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["{} 0 0 1 0", "{},0,1", "{}\t1", "images_001/images/{}", '"{}",1', "{};0", "{}  # kept"]
)
def test_lists_with_more_on_a_line_than_a_name(small_set, line):
    expected = chest_xray.find_images(small_set)
    for name in ("train_val_list.txt", "test_list.txt"):
        names = (small_set / name).read_text().split()
        (small_set / name).write_bytes("\r\n".join(line.format(one) for one in names).encode("utf-8-sig"))
    found = chest_xray.find_images(small_set)
    assert (found.problems, found.test) == ((), expected.test)
