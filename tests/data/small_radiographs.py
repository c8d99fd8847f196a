"""Tiny data sets in the layout of ChestX-ray14, sound and damaged, and kinds of PNG files that no library writes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lms3d.data.chest_xray import png
from lms3d.data.phantoms.chests import HEADER

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # channels -> grey, grey + alpha, RGB, RGBA


def png_bytes(image: np.ndarray) -> bytes:
    """(H, W) or (H, W, C) of uint8 or uint16 as a PNG file."""
    image = image if image.ndim == 3 else image[..., None]
    height, width, channels = image.shape
    bits = 8 * image.itemsize
    rows = b"".join(b"\0" + row.astype(image.dtype.newbyteorder(">")).tobytes() for row in image)
    header = struct.pack(">IIBBBBB", width, height, bits, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def random_image(seed: int, size: int = 40) -> np.ndarray:
    """(size, size) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (size, size), np.uint8)


def write_set(
    root: Path,
    rows: Mapping[str, str],
    *,
    test: Sequence[str] | None = None,
    header: str = HEADER,
    table: str = "Data_Entry_2017.csv",
) -> Path:
    """A data set with an image and a row per entry of `rows` (file name -> labels), dealt out over two folders.

    test: names in the official test list; the others are in the other list. None: no lists.
    """
    for k, name in enumerate(sorted(rows)):
        folder = root / f"images_{1 + k % 2:03d}" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        png.write(random_image(k), folder / name)
    tail = "," if header.endswith(",") else ""
    lines = [row(name, labels) + tail for name, labels in rows.items()]
    (root / table).write_text("\n".join([header, *lines]) + "\n")
    if test is not None:
        (root / "test_list.txt").write_text("\n".join(test) + "\n")
        (root / "train_val_list.txt").write_text("\n".join(name for name in rows if name not in test) + "\n")
    return root


def row(name: str, labels: str) -> str:
    """A row of the table, without its trailing comma."""
    patient, visit = name.removesuffix(".png").split("_")
    return f"{name},{labels},{int(visit)},{int(patient)},057Y,M,PA,2682,2749,0.143,0.143"


def many(patients: int, visits: int = 2) -> dict[str, str]:
    """Rows of so many patients with so many images each."""
    labels = ("No Finding", "Effusion|Mass", "Hernia", "Nodule|Atelectasis|Edema")
    return {f"{p:08d}_{v:03d}.png": labels[(p + v) % 4] for p in range(1, patients + 1) for v in range(visits)}


def file_of(root: Path, name: str) -> Path:
    """The path of an image."""
    (path,) = root.rglob(name)
    return path
