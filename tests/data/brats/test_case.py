"""Each file that cannot be used is reported in one line, with its name."""

import nibabel as nib
import numpy as np
import pytest

from lms3d.data.brats.case import header_of, load_images, load_truth
from lms3d.data.brats.layouts import find_cases
from lms3d.data.errors import DataError
from tests.data.small_data import AFFINE, SHAPE, check_case, random_case, save

AXES = [(1, 0, 2), (2, 1, 0), (1, 2, 0), (0, 1, 2)]
FLIPS = [(1, 1, 1), (-1, 1, 1), (1, -1, -1)]


@pytest.fixture
def first(data_set):
    cases, schema = find_cases(data_set)
    return cases[0], schema


def fails(case, schema, pattern):
    with pytest.raises(DataError, match=pattern) as caught:
        check_case(case, schema)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_sound_case_loads_in_channel_order(first):
    case, schema = first
    check_case(case, schema)
    images, affine = load_images(case)
    expected = random_case(1)
    assert images.dtype == np.float32
    for index, channel in enumerate(("t1", "t1ce", "flair", "t2")):
        np.testing.assert_array_equal(images[..., index], expected[channel])
    np.testing.assert_array_equal(affine, AFFINE)
    np.testing.assert_array_equal(load_truth(case, schema), expected["truth"])
    assert images.shape == (*SHAPE, 4)


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.98])
def test_truncated_gzip(first, keep):
    case, schema = first
    path = case.images["flair"]
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    fails(case, schema, r"_001_flair.nii.gz: found a file that cannot be read .* copy or download it again")


def test_truncated_plain_file_and_a_file_of_another_kind(first):
    case, schema = first
    plain = save(random_case(1)["t2"], case.images["t2"].with_suffix("").with_suffix(".nii"))
    plain.write_bytes(plain.read_bytes()[:2000])
    case.images["t2"].unlink()
    broken = type(case)(id=case.id, images={**case.images, "t2": plain}, truth=case.truth)
    fails(broken, schema, r"_001_t2.nii: found a file that cannot be read")
    case.truth.write_text("not an image")
    fails(
        type(case)(id=case.id, images={**case.images, "t2": case.images["t1"]}, truth=case.truth), schema, "_seg.nii.gz"
    )


def test_shapes_differ(first):
    case, schema = first
    save(np.ones((20, 24, 19), np.int16), case.images["t1ce"])
    fails(case, schema, r"_t1ce.nii.gz: found shape 20x24x19; expected 20x24x18 as in t1; register all files")


def test_truth_of_another_shape(first):
    case, schema = first
    save(np.zeros((20, 24, 17), np.uint8), case.truth)
    fails(case, schema, r"_seg.nii.gz: found shape 20x24x17; expected 20x24x18 as in the images")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(first, value):
    case, schema = first
    array = random_case(1)["t1"].astype(np.float32)
    array[5, 5, 5] = value
    save(array, case.images["t1"])
    fails(case, schema, r"_t1.nii.gz: found 1 voxels that are NaN or infinite; expected finite numbers")


@pytest.mark.parametrize(("value", "text"), [(3, "3"), (-1, "-1"), (1.5, "1.5"), (260, "260")])
def test_label_outside_the_schema(first, value, text):
    case, schema = first
    array = random_case(1)["truth"].astype(np.float32)
    array[10, 10, 9] = value
    save(array, case.truth)
    fails(case, schema, rf"_seg.nii.gz: found label {text}; expected only 0, 1, 2, 4 \(labels of brats2020\)")


def test_labels_stored_as_floats_are_fine(first):
    case, schema = first
    save(random_case(1)["truth"].astype(np.float64), case.truth)
    np.testing.assert_array_equal(load_truth(case, schema), random_case(1)["truth"])


def test_empty_image(first):
    case, schema = first
    nib.save(nib.Nifti1Image(np.zeros(SHAPE, np.int16), AFFINE), case.images["t2"])
    fails(case, schema, r"BraTS20_Training_001: found modality t2 with nothing but zeros")


TURN = np.array([[0.9962, -0.0872, 0, 0], [0.0872, 0.9962, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
ELSEWHERE = {
    "mirrored": (np.diag([-1.0, 1, 1, 1]), "axes RPS, voxels of 1 x 1 x 1 mm"),
    "coarser": (np.diag([1.0, 1, 2, 1]), "axes LPS, voxels of 1 x 1 x 2 mm"),
    "exchanged": (np.eye(4)[[1, 0, 2, 3]], "axes PLS, voxels of 1 x 1 x 1 mm"),
    "turned": (TURN, r"axes LPS, voxels of 1 x 1 x 1 mm, turned by 5\.0 degrees"),
}


@pytest.mark.parametrize("how", ELSEWHERE)
@pytest.mark.parametrize("name", ["t2", "truth"])
def test_a_file_of_the_same_shape_but_another_frame_is_refused(first, name, how):
    case, schema = first
    change, found = ELSEWHERE[how]
    path = case.truth if name == "truth" else case.images[name]
    save(random_case(1)[name], path, AFFINE @ change)
    like = "the images" if name == "truth" else "t1"
    fails(
        case, schema, rf"{path.name}: found {found}; expected axes LPS, voxels of 1 x 1 x 1 mm as in {like}; resample "
    )


@pytest.mark.parametrize("name", ["t1ce", "truth"])
def test_another_origin_alone_is_told_once(first, name, caplog):
    case, schema = first
    path = case.truth if name == "truth" else case.images[name]
    moved = AFFINE.copy()
    moved[:3, 3] += (0, -239, 4)
    save(random_case(1)[name], path, moved)
    check_case(case, schema)
    (message,) = caplog.messages
    like = "the images" if name == "truth" else "t1"
    assert f"{path.name}: found origin (0, 0, 4) mm; expected (0, 239, 0) mm as in {like}; " in message
    assert "\n" not in message


def test_the_rounding_of_a_header_is_no_difference(first, caplog):
    case, schema = first
    save(random_case(1)["t2"], case.images["t2"], AFFINE * (1 + 2e-6) + 1e-5)
    check_case(case, schema)
    assert not caplog.messages


def test_a_frame_that_is_none(first):
    case, schema = first
    image = nib.Nifti1Image(random_case(1)["t1"], AFFINE)
    image.header["srow_x"] = 0
    image.header["sform_code"] = 1
    nib.save(type(image)(image.dataobj, None, image.header), case.images["t1"])
    fails(case, schema, r"_t1.nii.gz: found an affine that .*; expected .*; set it")


def reordered(array: np.ndarray, axes: tuple[int, ...], flips: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Array and affine of the same voxels at the same places, stored in another order."""
    affine = AFFINE.copy()
    for axis, flip in enumerate(flips):
        if flip < 0:
            affine[:3, 3] += affine[:3, axis] * (array.shape[axis] - 1)
            affine[:3, axis] *= -1
    array = array[tuple(slice(None, None, flip) for flip in flips)].transpose(axes)
    return np.ascontiguousarray(array), affine[:, [*axes, 3]]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize("name", ["t2", "truth"])
def test_a_file_of_another_axis_order_is_turned(first, caplog, name, axes, flips):
    case, schema = first
    path = case.truth if name == "truth" else case.images[name]
    save(*reversed_arguments(path, reordered(random_case(1)[name], axes, flips)))
    images, affine = load_images(case)
    truth = load_truth(case, schema, images.shape[:3], affine)
    np.testing.assert_array_equal(affine, AFFINE)
    np.testing.assert_array_equal(images[..., 3], random_case(1)["t2"])
    np.testing.assert_array_equal(truth, random_case(1)["truth"])
    assert not caplog.messages


def reversed_arguments(path, stored):
    return stored[0], path, stored[1]


def test_all_files_follow_the_first(first):
    case, schema = first
    stored, affine = reordered(random_case(1)["t1"], (2, 0, 1), (-1, 1, -1))
    save(stored, case.images["t1"], affine)
    images, found = load_images(case)
    np.testing.assert_array_equal(images[..., 0], stored)
    np.testing.assert_array_equal(images[..., 2], reordered(random_case(1)["flair"], (2, 0, 1), (-1, 1, -1))[0])
    truth = load_truth(case, schema, images.shape[:3], found)
    np.testing.assert_array_equal(truth, reordered(random_case(1)["truth"], (2, 0, 1), (-1, 1, -1))[0])
    np.testing.assert_array_equal(found, affine)


@pytest.mark.parametrize("name", ["t2", "truth"])
def test_a_turned_file_of_another_extent_is_refused(first, name):
    case, schema = first
    path = case.truth if name == "truth" else case.images[name]
    stored, affine = reordered(random_case(1)[name], (0, 1, 2), (-1, 1, 1))
    affine[0, 3] += 3
    save(stored, path, affine)
    fails(case, schema, rf"{path.name}: found axes RPS, .*; expected axes LPS, .*; resample it")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_next_to_a_whole_number_are_rounded(first, dtype):
    case, schema = first
    array = random_case(1)["truth"].astype(dtype)
    array[array == 1] = 0.99999994
    array[array == 4] = 4.0009
    save(array, case.truth)
    np.testing.assert_array_equal(load_truth(case, schema), random_case(1)["truth"])


@pytest.mark.parametrize("value", [0.99, 1.002, 3.9, -0.5])
def test_labels_between_whole_numbers_are_refused(first, value):
    case, schema = first
    array = random_case(1)["truth"].astype(np.float32)
    array[10, 10, 9] = value
    save(array, case.truth)
    fails(case, schema, rf"_seg.nii.gz: found label {value:g}; expected only 0, 1, 2, 4")


@pytest.mark.parametrize("name", ["t1", "flair", "truth"])
def test_a_last_axis_of_one_is_no_axis(first, name):
    case, schema = first
    save(random_case(1)[name][..., None], case.truth if name == "truth" else case.images[name])
    check_case(case, schema)
    np.testing.assert_array_equal(load_images(case)[0][..., 2], random_case(1)["flair"])


def test_the_header_of_the_first_image(first):
    case, _ = first
    image = nib.Nifti1Image(random_case(1)["t1"], AFFINE)
    image.set_sform(AFFINE, 4)
    image.set_qform(AFFINE, 1)
    image.header.set_xyzt_units("mm")
    nib.save(image, case.images["t1"])
    header = header_of(case)
    assert (header.shape, header.sform_code, header.qform_code, header.unit) == (SHAPE, 4, 1, "mm")
    assert header.dtype == np.int16
    np.testing.assert_array_equal(header.affine, AFFINE)
    np.testing.assert_allclose(header.qform, AFFINE)
