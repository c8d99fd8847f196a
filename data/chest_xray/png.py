"""Radiographs as PNG files of any kind -> grey images of 8 bits, of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from data.errors import DataError

_UNREADABLE = (OSError, EOFError, SyntaxError, ValueError, Image.DecompressionBombError)
_MOST_PIXELS = 1 << 25  # twice what detectors have
_ADVICE = "copy the file again, or leave it out (python -m data.prepare DATA --skip-bad)"


def read_grey(path: Path, resolution: int | None = None) -> np.ndarray:
    """The image (H, W) uint8, or resized to (resolution, resolution). Raises DataError for a file that is not whole.

    One, two, three or four channels, a palette, 1 to 16 bits: colours become their luminance, transparency is ignored
    (some files of ChestX-ray14 are RGBA, grey in all three channels), 16 bits lose their lower byte.
    """
    try:
        with Image.open(path, formats=("PNG",)) as image:
            _require_size(image)
            image.verify()  # the checksums of all chunks, which decoding does not look at; needs a fresh start after
        with Image.open(path, formats=("PNG",)) as image:
            grey = _grey(image)
    except FileNotFoundError:
        raise DataError(f"{path}: found nothing; expected a PNG image; {_ADVICE}") from None
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: found a file that cannot be read ({_reason(error)}); expected a whole PNG image; {_ADVICE}"
        ) from None
    if resolution is not None and grey.size != (resolution, resolution):
        # Pillow's bilinear filter is as wide as the reduction: each new pixel is a weighted mean, without aliasing.
        grey = grey.resize((resolution, resolution), Image.Resampling.BILINEAR)
    return np.asarray(grey)


def _require_size(image: Image.Image) -> None:
    """ValueError before anything is unpacked: some bytes may hold gigabytes."""
    width, height = image.size
    if width * height > _MOST_PIXELS:
        raise ValueError(f"{width}x{height} pixels, where {_MOST_PIXELS:,} are the most")


def write(image: np.ndarray, path: Path) -> None:
    """Write (H, W) grey or (H, W, 4) RGBA uint8 as PNG. Weak compression: radiographs are noise in their last bits."""
    Image.fromarray(image).save(path, format="PNG", compress_level=1)


def _grey(image: Image.Image) -> Image.Image:
    """Of mode L, decoded whole."""
    image.load()
    if image.mode.startswith("I"):  # 16 bits of one channel; Pillow would clip it, not scale it
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("P", "PA"):
        image = image.convert("RGB")
    return image if image.mode == "L" else image.convert("L")


def _reason(error: BaseException) -> str:
    """What Pillow says, without the path, which stands before it already."""
    text = str(error).split(": '")[0].split(" '/")[0]
    return text or type(error).__name__
