"""Label maps as DICOM-SEG, beside the NIfTI files, for cases that were read from DICOM (`lms3d.data.volumes.dicom`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.atomic_files import replacing
from lms3d.data.volumes import dicom
from lms3d.data.volumes.labels import LabelSchema
from lms3d.errors import InputError

FORMAT = "dicom-seg"


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
    """Writes a label map, on the grid of its series, as one DICOM-SEG file with a segment for each label."""
    import SimpleITK as sitk
    from highdicom.seg import Segmentation, SegmentationTypeValues
    from highdicom.uid import UID
    from pydicom import dcmread

    series: Mapping[str, str] = json.loads((manifest.parent / dicom.SERIES).read_text(encoding="utf-8"))[case]
    source = [dcmread(name) for name in dicom.file_names(Path(next(iter(series.values()))))]
    labels = sitk.GetArrayFromImage(sitk.ReadImage(str(label_map)))
    learnt = [(name, value) for name, value in schema.labels.items() if value]
    planes = np.stack([labels == value for _, value in learnt], axis=-1).astype(np.uint8)
    made = Segmentation(
        source_images=source, pixel_array=planes, segmentation_type=SegmentationTypeValues.BINARY,
        segment_descriptions=[_described(number, name) for number, (name, _) in enumerate(learnt, 1)],
        series_instance_uid=UID(), series_number=300, sop_instance_uid=UID(), instance_number=1,
        manufacturer="lms3d", manufacturer_model_name="lms3d", software_versions=version("lms3d"),
        device_serial_number="0", series_description="segmentation by lms3d",
    )  # fmt: skip
    with replacing(path) as partial:
        made.save_as(partial)


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
