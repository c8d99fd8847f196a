"""Reads radiographs from PNG files of any kind as grey images of 8 bits, in any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from lms3d.data.errors import DataError

_UNREADABLE = (OSError, EOFError, SyntaxError, ValueError, Image.DecompressionBombError)
_MOST_PIXELS = 1 << 25  # twice as many as detectors have
_ADVICE = "copy the file again, or leave it out (python -m lms3d.data.prepare DATA --skip-bad)"


def read_grey(path: Path, resolution: int | None = None) -> np.ndarray:
    """The image (H, W) uint8, or resized to (resolution, resolution). DataError for a file that is not whole.

    The file may have one to four channels or a palette, and 1 to 16 bits. Colours become their luminance, and 16 bits lose their
    lower byte. Transparency is ignored: some files of ChestX-ray14 are RGBA, with the same grey in all three channels.
    """
    try:
        with Image.open(path, formats=("PNG",)) as image:
            _require_size(image)
            image.verify()  # compares the checksums of all chunks, which decoding ignores; the file must be opened again after
        with Image.open(path, formats=("PNG",)) as image:
            grey = _grey(image)
    except FileNotFoundError:
        raise DataError(f"{path}: found nothing; expected a PNG image; {_ADVICE}") from None
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: found a file that cannot be read ({_reason(error)}); expected a whole PNG image; {_ADVICE}"
        ) from None
    if resolution is not None and grey.size != (resolution, resolution):
        # Pillow's bilinear filter is as wide as the reduction, so that each new pixel is a weighted mean, without aliasing.
        grey = grey.resize((resolution, resolution), Image.Resampling.BILINEAR)
    return np.asarray(grey)


def _require_size(image: Image.Image) -> None:
    """ValueError for an image that is too large, before it is unpacked: a few bytes may hold gigabytes."""
    width, height = image.size
    if width * height > _MOST_PIXELS:
        raise ValueError(f"{width}x{height} pixels, where {_MOST_PIXELS:,} are the most")


def write(image: np.ndarray, path: Path) -> None:
    """Writes an image, (H, W) grey or (H, W, 4) RGBA uint8, as PNG. Compression is weak, as the last bits of a radiograph are
    noise."""
    Image.fromarray(image).save(path, format="PNG", compress_level=1)


def _grey(image: Image.Image) -> Image.Image:
    """The image in mode L, fully decoded."""
    image.load()
    if image.mode.startswith("I"):  # one channel of 16 bits, which Pillow would clip, not scale
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("P", "PA"):
        image = image.convert("RGB")
    return image if image.mode == "L" else image.convert("L")


def _reason(error: BaseException) -> str:
    """Pillow's reason, without the path, which is in the message already."""
    text = str(error).split(": '")[0].split(" '/")[0]
    return text or type(error).__name__
