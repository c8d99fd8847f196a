"""DICOM-SEG files that are written plane by plane are the same as by highdicom, which takes whole label maps."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import SimpleITK as sitk

from lms3d.data.volumes import dicom
from lms3d.errors import InputError, StorageError
from lms3d.tasks.streaming import nifti
from lms3d.tasks.streaming.volumes import Array
from lms3d.tasks.volumes import dicom_seg, label_maps
from tests.data import dicom_series
from tests.installed import needed

SHAPE = (7, 5, 6)  # columns, rows, planes: a frame of 35 bits ends within a byte
SEGMENTS = {"liver": 1, "spleen": 3, "never there": 4}
CHOSEN_ANEW = (
    "ContentDate", "ContentTime", "InstanceCreationDate", "InstanceCreationTime", "SeriesDate", "SeriesTime",
)  # fmt: skip


SCHEMA = SimpleNamespace(labels={"background": 0, **SEGMENTS})


@pytest.fixture
def written(tmp_path):
    """`written(labels)`: a label map (X, Y, Z) of the one case, "anna", as DICOM-SEG: the path of that, and the series below it."""
    needed("highdicom", "pydicom", extra="dicom")

    def write(labels: np.ndarray) -> tuple[Path, Path]:
        folder = tmp_path / "study/anna/CT"
        if not folder.exists():
            image = sitk.GetImageFromArray(np.zeros(labels.shape[::-1], np.int16))
            image.SetSpacing((0.5, 0.75, 2.0))
            image.SetOrigin((-10, 20, 5))
            image.SetDirection((1, 0, 0, 0, 0, 1, 0, -1, 0))
            dicom_series.write(image, folder, 1)
        (tmp_path / dicom.SERIES).write_text(json.dumps({"anna": {"CT": str(folder)}}))
        path = tmp_path / "out" / "anna.nii.gz"
        header = label_maps.header_at(np.eye(4), labels.shape)
        nifti.write(Array(labels[..., np.newaxis]), path, header, lambda planes: planes[..., 0])
        target = tmp_path / "dicom" / "anna.dcm"
        dicom_seg.write(path, tmp_path / dicom.MANIFEST, "anna", SCHEMA, target)
        return target, folder

    return write


def some_labels() -> np.ndarray:
    """Planes without a label at both ends and between, and one organ in fewer planes than the other."""
    labels = np.random.default_rng(0).choice([0, 1, 3], size=SHAPE).astype(np.uint8)
    labels[:, :, [0, 3, 5]] = 0
    labels[:, :, 4] = labels[:, :, 4] == 1
    return labels


def by_highdicom(labels: np.ndarray, series: Path, path: Path):
    """The file that highdicom makes of the whole label map, written and read."""
    from highdicom.seg import Segmentation, SegmentationTypeValues
    from highdicom.uid import UID
    from pydicom import dcmread

    planes = np.stack([labels.transpose(2, 1, 0) == value for value in SEGMENTS.values()], axis=-1).astype(np.uint8)
    made = Segmentation(
        source_images=[dcmread(name) for name in dicom.file_names(series)], pixel_array=planes,
        segmentation_type=SegmentationTypeValues.BINARY, segment_descriptions=dicom_seg.descriptions(list(SEGMENTS)),
        series_instance_uid=UID(), sop_instance_uid=UID(), instance_number=1, **dicom_seg.ABOUT,
    )  # fmt: skip
    made.save_as(path)
    return dcmread(path)


def frames(found) -> dict[tuple[int, int], tuple[str, bytes]]:
    """(segment, plane) -> what the file says of the frame, and its voxels."""
    told = {}
    for item, voxels in zip(found.PerFrameFunctionalGroupsSequence, found.pixel_array, strict=True):
        told[tuple(item.FrameContentSequence[0].DimensionIndexValues)] = (str(item), voxels.tobytes())
    return told


def without_frames(found) -> dict[str, str]:
    """Keyword -> value of all that does not hang on the order of the frames, without what is chosen anew for each file."""
    kept = [one for one in found if one.keyword not in ("PerFrameFunctionalGroupsSequence", "PixelData", *CHOSEN_ANEW)]
    return {one.keyword: re.sub(r"1\.2\.826\.[\d.]+", "anew", str(one)) for one in kept}


def test_the_file_is_that_of_highdicom_but_for_the_order_of_its_frames(written, tmp_path):
    from highdicom.seg import segread
    from pydicom import dcmread

    labels = some_labels()
    path, series = written(labels)
    found, expected = dcmread(path), by_highdicom(labels, series, tmp_path / "expected.dcm")
    assert frames(found) == frames(expected)
    assert len(frames(found)) == 5  # of 18: liver in three planes, spleen in two
    assert without_frames(found) == without_frames(expected)
    assert len(found.PixelData) == len(expected.PixelData)
    found = segread(path)
    whole = found.get_volume(combine_segments=True).array  # of the planes between the first and the last with a label
    numbers = np.searchsorted([0, *SEGMENTS.values()], labels)
    counted = np.bincount(whole.ravel(), minlength=4)
    assert list(counted[1:]) == [(numbers == number).sum() for number in (1, 2, 3)]


def test_a_label_alone_has_a_frame_in_each_of_its_planes(written):
    from pydicom import dcmread

    labels = some_labels()
    labels[labels != 3] = 0
    path, _ = written(labels)
    voxels = dcmread(path).pixel_array
    planes = [k for k in range(SHAPE[2]) if labels[:, :, k].any()]
    np.testing.assert_array_equal(voxels, (labels[:, :, planes] == 3).transpose(2, 1, 0))


def test_without_a_label_the_first_segment_is_empty_in_every_plane(written, caplog):
    from pydicom import dcmread

    with caplog.at_level(logging.WARNING):
        path, _ = written(np.zeros(SHAPE, np.uint8))
    found = dcmread(path)
    assert found.NumberOfFrames == SHAPE[2]
    assert not found.pixel_array.any()
    assert len(found.SegmentSequence) == 3
    assert caplog.text == ""


def test_no_more_than_some_planes_are_in_memory(written, tmp_path, monkeypatch):
    peaks, write = [], dicom_seg.write

    def traced(*arguments):
        tracemalloc.start()
        write(*arguments)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    monkeypatch.setattr(dicom_seg, "write", traced)
    sizes = []
    for planes in (4, 4, 40):  # the first imports
        labels = np.ones((256, 256, planes), np.uint8)
        path, _ = written(labels)
        assert path.stat().st_size > labels.size / 8
        sizes.append(labels.size)
        shutil.rmtree(tmp_path / "study")
    headers = 36 * 40 * 1024  # 36 more slices
    assert peaks[2] - peaks[1] < headers < sizes[2] - sizes[1]


def test_a_series_of_other_planes_is_refused(written):
    written(some_labels())
    with pytest.raises(InputError, match=r"CT: found 6 files in the DICOM series; expected one for each of 5 planes"):
        written(some_labels()[:, :, 1:])


def test_a_full_disk_leaves_the_file_of_before(written, monkeypatch):
    path, _ = written(some_labels())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dicom_seg, "_pack", full)
    with pytest.raises(StorageError, match="No space left"):
        written(some_labels())
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["anna.dcm"]
