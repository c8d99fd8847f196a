"""DICOM series of slices, written by SimpleITK."""

from __future__ import annotations

import locale
from pathlib import Path

import SimpleITK as sitk

_MR = "1.2.840.10008.5.1.4.1.1.4"


def write(image: sitk.Image, folder: Path, number: int, *, sideways_mm: float = 0.0) -> None:
    """Writes a volume of int16 as a series of one file for each slice. number: of the series in its study. sideways_mm: how far
    each slice lies beside the one before, as from a tilted gantry."""
    folder.mkdir(parents=True)
    d = image.GetDirection()
    tags = {
        "0008|0016": _MR, "0008|0060": "MR", "0010|0010": "Doe^Jane", "0010|0020": "17", "0010|0030": "19700101",
        "0010|0040": "F", "0008|0020": "20260101", "0008|0030": "120000", "0020|0010": "1", "0008|0050": "1",
        "0020|000d": "1.2.3.4", "0020|000e": f"1.2.3.4.{number}", "0020|0052": "1.2.3.4.99",
        "0020|0037": "\\".join(f"{d[i]:g}" for i in (0, 3, 6, 1, 4, 7)),
    }  # fmt: skip
    for i in range(image.GetSize()[2]):
        part = image[:, :, i]
        x, y, z = image.TransformIndexToPhysicalPoint((0, 0, i))
        position = "\\".join(f"{place:g}" for place in (x, y + i * sideways_mm, z))
        own = {"0020|0032": position, "0020|0013": str(i + 1), "0008|0018": f"1.2.3.4.{number}.{i + 1}"}
        between = f"{image.GetSpacing()[2]:g}"
        for tag, value in {**tags, **own, "0018|0050": between, "0018|0088": between}.items():
            part.SetMetaData(tag, value)
        write_slice(part, folder / f"{i + 1:03d}.dcm")


def write_slice(image: sitk.Image, path: Path) -> None:
    """Writes an image with its tags as a DICOM file."""
    before = locale.setlocale(locale.LC_ALL)
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    writer.SetFileName(str(path))
    try:
        writer.Execute(image)
    finally:
        locale.setlocale(
            locale.LC_ALL, before
        )  # ITK's writer of DICOM leaves "C", and Python then reads files as ASCII
