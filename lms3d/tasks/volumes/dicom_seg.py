"""Label maps as DICOM-SEG, beside the NIfTI files, for cases that were read from DICOM (`lms3d.data.volumes.dicom`).

SEG-1 A label map is read twice, plane by plane: which labels are in which plane, then their voxels. No more than a plane is in
      memory, beside the headers of the series and what the file says of each of its frames.
SEG-2 highdicom writes all but the voxels: it is given one voxel for each plane and segment, set if the segment is in the plane.
SEG-3 A frame is a segment in a plane, if it has voxels there; frames are in the order of the planes. A file has one frame at least:
      if no voxel has a label, the first segment is empty in every plane.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from lms3d.atomic_files import replacing
from lms3d.data.volumes import dicom
from lms3d.data.volumes.labels import LabelSchema
from lms3d.errors import InputError
from lms3d.tasks.streaming import nifti

FORMAT = "dicom-seg"
ABOUT: Mapping[str, Any] = {
    "series_number": 300, "series_description": "segmentation by lms3d", "manufacturer": "lms3d",
    "manufacturer_model_name": "lms3d", "software_versions": version("lms3d"), "device_serial_number": "0",
}  # fmt: skip
"""What the files say of who made them, as arguments of highdicom's `Segmentation`."""


def require(manifest: Path | None) -> None:
    """InputError if highdicom is not installed, or the data were not read from DICOM. manifest: of the series; None without any."""
    if find_spec("highdicom") is None:
        raise InputError(f"--format {FORMAT}: found no highdicom; expected it installed: pip install 'lms3d[dicom]'")
    if manifest is None:
        raise InputError(
            f"--format {FORMAT}: found data that are no DICOM series, to which a segmentation would belong; leave it out, or give "
            "a folder of series with --data"
        )


def write(label_map: Path, manifest: Path, case: str, schema: LabelSchema, path: Path) -> None:
    """Writes a label map, on the grid of its series, as one DICOM-SEG file with a segment for each label.

    InputError if the series has not one file for each plane; StorageError if the disk fails, and then nothing has changed.
    """
    from pydicom import dcmread

    series: Mapping[str, str] = json.loads((manifest.parent / dicom.SERIES).read_text(encoding="utf-8"))[case]
    folder = Path(next(iter(series.values())))
    learnt = {name: value for name, value in schema.labels.items() if value}
    present = _present(label_map, list(learnt.values()))
    sources = [dcmread(name, stop_before_pixels=True) for name in dicom.file_names(folder)]
    if len(sources) != len(present):
        raise InputError(
            f"{folder}: found {len(sources)} files in the DICOM series; expected one for each of {len(present)} planes of "
            f"{label_map}; export the series as single slices"
        )
    rows, columns = sources[0].Rows, sources[0].Columns
    made = _without_voxels(sources, present, list(learnt))
    with replacing(path) as partial, TemporaryFile(dir=path.parent) as voxels:
        _pack(label_map, present, list(learnt.values()), voxels)
        voxels.seek(0)
        made.Rows, made.Columns, made.PixelData = rows, columns, voxels
        made.save_as(partial)


def _present(label_map: Path, values: Sequence[int]) -> np.ndarray:
    """Which planes have which of the values: (planes, values) bool (SEG-1, SEG-3)."""
    present = np.array([np.isin(values, plane) for plane in nifti.planes(label_map)])
    if not present.any():
        present[:, 0] = True
    return present


def _without_voxels(sources: Sequence[Any], present: np.ndarray, names: Sequence[str]) -> Any:
    """highdicom's file for a series with these headers, which it changes, in the order of SEG-3 (SEG-2)."""
    from highdicom.seg import Segmentation, SegmentationTypeValues
    from highdicom.uid import UID

    for source in sources:
        source.Rows = source.Columns = 1
    made = Segmentation(
        source_images=sources, pixel_array=present[:, np.newaxis, np.newaxis].astype(np.uint8),
        segmentation_type=SegmentationTypeValues.BINARY, segment_descriptions=descriptions(names),
        series_instance_uid=UID(), sop_instance_uid=UID(), instance_number=1, **ABOUT,
    )  # fmt: skip
    made.SegmentsOverlap = "NO"  # in one voxel they do
    numbers = {source.SOPInstanceUID: number for number, source in enumerate(sources)}
    frames = made.PerFrameFunctionalGroupsSequence
    made.PerFrameFunctionalGroupsSequence = sorted(frames, key=lambda frame: numbers[_source(frame)])
    return made


def _source(frame: Any) -> str:
    """The identifier of the slice from which a frame derives. Its number of the plane may run the other way."""
    return str(frame.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID)


def _pack(label_map: Path, present: np.ndarray, values: Sequence[int], file: IO[bytes]) -> None:
    """Writes the voxels of all frames, eight to a byte: a frame may end within a byte, and the next one begins there."""
    rest = np.zeros(0, bool)
    for plane, of_plane in zip(nifti.planes(label_map), present, strict=True):
        for value in np.asarray(values)[of_plane]:
            bits = np.concatenate([rest, (plane == value).ravel()])
            whole = bits.size // 8 * 8
            file.write(np.packbits(bits[:whole], bitorder="little").tobytes())
            rest = bits[whole:]
    file.write(np.packbits(rest, bitorder="little").tobytes())
    file.write(b"\0" * (file.tell() % 2))  # a value has an even length


def descriptions(names: Sequence[str]) -> list[Any]:
    """What the file says of its segments: their names, from number 1 on."""
    return [_described(number, name) for number, name in enumerate(names, 1)]


def _described(number: int, name: str) -> Any:
    from highdicom.content import AlgorithmIdentificationSequence
    from highdicom.seg import SegmentAlgorithmTypeValues, SegmentDescription
    from pydicom.sr.codedict import codes

    return SegmentDescription(
        segment_number=number, segment_label=name, segmented_property_category=codes.SCT.AnatomicalStructure,
        segmented_property_type=codes.SCT.AnatomicalStructure, algorithm_type=SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=AlgorithmIdentificationSequence(
            name="lms3d", version=version("lms3d"), family=codes.DCM.ArtificialIntelligence
        ),
    )  # fmt: skip
