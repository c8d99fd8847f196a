"""Reads the header of a NIfTI file. It is refused if its voxels could not be used or would not fit into the file.

Every function raises DataError, which names the file, for a file that cannot be used.
"""

from __future__ import annotations

import errno
import gzip
import logging
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import nibabel as nib
import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.volumes import frame

ENDINGS = (".nii.gz", ".nii")
"""The endings, in order of preference: some mirrors unpack files and keep both."""

_KINDS = {348: (nib.Nifti1Header, 352), 540: (nib.Nifti2Header, 544)}  # first number -> (class, first byte of voxels)
_MOST_VOXELS = 2**30  # 1024^3: far above any scan, and far below the claims of a damaged header
_MOST_SCALE = 1e12  # the largest slope and intercept
_EXPANSION = 1040  # deflate compresses by at most 1032 : 1
_UNITS = {0: "unknown", 1: "meter", 2: "mm", 3: "micron"}
_MM = {"meter": 1000.0, "micron": 0.001}
NOT_REGULAR = errno.ESPIPE
"""The number of the error for a pipe or a folder in place of a file."""
GZIP = b"\x1f\x8b"
"""The first bytes of a compressed file."""
_SEVERE = 40  # the level of nibabel's header checks from which on a header is refused; others are corrected

_silent = logging.Logger("lms3d.data.volumes.header", logging.CRITICAL + 1)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The content of a header that another file on the same grid must repeat, and the position of the voxels."""

    shape: tuple[int, ...]
    """The shape, (X, Y, Z), or (X, Y, Z, C) with C > 1."""
    affine: np.ndarray
    """The affine (4, 4) float64 from voxel indices to millimetres, whatever the unit of the header. It comes from the sform if that
    has a code, else from the qform, else from the voxel sizes alone (see `oriented`)."""
    sform_code: int
    """0 none, 1 scanner, 2 aligned, 3 Talairach, 4 MNI. `qform_code` has the same values."""
    qform_code: int
    qform: np.ndarray | None
    """The qform (4, 4) float64 in the unit of the header; None without a code. It may differ from `affine`."""
    unit: str
    """The unit of the grid: "mm", "meter", "micron" or "unknown"."""
    dtype: np.dtype[Any]
    """The type of the stored voxels."""
    first_byte: int
    """The position of the voxels in the uncompressed file."""
    scale: tuple[float, float]
    """The slope and intercept that scale the stored numbers."""

    @property
    def oriented(self) -> bool:
        """Whether the header says where the voxels lie. Programs that save a plain array leave both codes 0."""
        return bool(self.sform_code or self.qform_code)

    @property
    def bytes(self) -> int:
        """The size of the uncompressed file up to its last voxel."""
        return self.first_byte + math.prod(self.shape) * self.dtype.itemsize


def read_header(path: Path) -> Header:
    """The header of a file. No voxel is read."""
    try:
        with open_file(path) as stream:
            raw = _parsed(stream.read(max(_KINDS)))
        shape, dtype, scale = _shape(path, raw), _dtype(path, raw), _scale(path, raw)
        raw.check_fix(logger=_silent, error_level=_SEVERE)
        unit = _UNITS.get(int(raw["xyzt_units"]) % 8, _UNITS[0])
        header = Header(
            shape=shape, affine=_in_mm(raw, unit), sform_code=int(raw["sform_code"]),
            qform_code=int(raw["qform_code"]), qform=_qform(raw), unit=unit, dtype=dtype,
            first_byte=raw.get_data_offset(), scale=scale,
        )  # fmt: skip
    except Exception as error:  # nibabel, zlib and gzip raise many kinds
        raise unreadable(path, error) from None
    frame.require_usable(path, header.affine, unit)
    _require_room(path, header)
    return header


def raw_header(path: Path) -> Any:
    """nibabel's header of a file, as it stands there. No voxel is read."""
    try:
        with open_file(path) as stream:
            return _parsed(stream.read(max(_KINDS)))
    except Exception as error:
        raise unreadable(path, error) from None


def open_file(path: Path) -> Any:
    """A file opened for reading, and decompressed if its first bytes say that it is compressed; its name may be wrong."""
    if not path.exists():
        found = f"a link to nothing ({path.readlink()})" if path.is_symlink() else "nothing"
        raise unusable(path, found, "a NIfTI file", "check the data set")
    if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe might never return
        what = "a folder" if path.is_dir() else "no regular file"
        raise unusable(path, what, "a NIfTI file (.nii or .nii.gz)", "put the file in its place")
    return gzip.open(path) if is_gzip(path) else path.open("rb")


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed, whatever its name. OSError if it cannot be read."""
    with open_bytes(path) as stream:
        return stream.read(len(GZIP)) == GZIP


def open_bytes(path: Path) -> BinaryIO:
    """A regular file opened for reading its bytes as they are. OSError for anything else: opening a pipe might never return."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(NOT_REGULAR, "no regular file", str(path))
    return path.open("rb")


def nifti_image(path: Path) -> Any:
    """nibabel's image of a file. Unlike `nibabel.load`, it does not rely on the name to see whether the file is compressed."""
    with open_file(path) as stream:
        content = stream.read()
    sizes = {int.from_bytes(content[:4], "little"), int.from_bytes(content[:4], "big")}
    kind = nib.Nifti2Image if 540 in sizes else nib.Nifti1Image
    return kind.from_bytes(content)


def unusable(path: Path, found: str, expected: str, advice: str) -> DataError:
    """The error for a file that cannot be used."""
    return DataError(f"{path}: found {found}; expected {expected}; {advice}")


def unreadable(path: Path, reason: Exception) -> DataError:
    """The error for a file that cannot be read: the reason itself if it is a DataError, else a DataError that quotes it."""
    if isinstance(reason, DataError):
        return reason
    found = f"a file that cannot be read ({str(reason) or type(reason).__name__})"
    return unusable(path, found, "a complete NIfTI file (.nii or .nii.gz)", "copy or download it again")


def text(shape: tuple[int, ...]) -> str:
    """A shape as text: (240, 240, 155) -> "240x240x155"."""
    return "x".join(map(str, shape))


def _parsed(start: bytes) -> Any:
    """nibabel's header of the first bytes of a file. It only checks that the file is a NIfTI file."""
    for order, mark in (("little", "<"), ("big", ">")):
        size = int.from_bytes(start[:4], order)  # type: ignore[arg-type]
        if size in _KINDS and len(start) >= size:
            kind, least = _KINDS[size]
            header = kind(start[:size], endianness=mark, check=False)
            break
    else:
        raise ValueError(f"its first bytes, {start[:4]!r}, are not those of a NIfTI header")
    if bytes(header["magic"].item())[:3] not in (b"n+1", b"n+2"):
        raise ValueError(f"its magic is {header['magic'].item()!r}, not that of header and voxels in one file")
    if not least <= float(header["vox_offset"]) < 2**31:
        raise ValueError(f"its voxels begin at byte {float(header['vox_offset']):g}")
    return header


def _shape(path: Path, raw: Any) -> tuple[int, ...]:
    """The lengths of the axes, without axes of length 1 after the three of space."""
    count, *lengths = (int(length) for length in raw["dim"])
    shape = tuple(lengths[: max(0, count)])
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if count > 7 or len(shape) not in (3, 4) or min(shape) < 1:
        found = f"{count} axes ({text(tuple(lengths[: max(0, count)])) or 'none'})"
        raise unusable(path, found, "a volume with 3 axes of at least one voxel", "replace the file")
    if math.prod(shape) > _MOST_VOXELS:
        found = f"a header that claims {text(shape)} voxels"
        raise unusable(path, found, f"at most {_MOST_VOXELS:,}", "replace the file")
    return shape


def _dtype(path: Path, raw: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = raw.get_data_dtype()
    except Exception:
        found = f"voxels of unknown type {int(raw['datatype'])}"
        raise unusable(path, found, "integers or floats", "replace the file") from None
    if dtype.kind not in "iuf":
        found = f"voxels that are {'colours (RGB)' if dtype.names else f'{dtype.name} numbers'}"
        raise unusable(path, found, "integers or floats", "convert it to one number per voxel")
    return dtype


def _scale(path: Path, raw: Any) -> tuple[float, float]:
    slope, inter = (float(raw[name]) for name in ("scl_slope", "scl_inter"))
    if slope == 0 or math.isnan(slope):  # both mean that voxels are not scaled
        return 1.0, 0.0
    if math.isnan(inter):
        raise unusable(
            path, f"voxels scaled by {slope:g} and shifted by nan", "a number as scl_inter", "set it, to 0 for no shift"
        )
    if not (abs(slope) <= _MOST_SCALE and abs(inter) <= _MOST_SCALE):
        found = f"voxels scaled by {slope:g} and shifted by {inter:g}"
        raise unusable(path, found, f"at most {_MOST_SCALE:g}", "replace the file, or set scl_slope and scl_inter")
    return slope, inter


def _in_mm(raw: Any, unit: str) -> np.ndarray:
    """The affine (4, 4) from voxel indices to millimetres."""
    affine = np.array(raw.get_best_affine(), np.float64)
    affine[:3] *= _MM.get(unit, 1.0)
    return affine


def _qform(raw: Any) -> np.ndarray | None:
    """The qform; None if it has no code, or if it is damaged, since it is not needed."""
    try:
        affine = raw.get_qform(coded=True)[0]
    except Exception:
        return None
    return None if affine is None else np.asarray(affine, np.float64)


def _require_room(path: Path, header: Header) -> None:
    """DataError if the file is too small for the voxels that its header claims."""
    size = path.stat().st_size
    if header.bytes > size * (_EXPANSION if is_gzip(path) else 1):
        found = f"{size:,} bytes, which cannot hold {text(header.shape)} voxels of {header.dtype}"
        raise unusable(
            path, f"a file that cannot be read ({found})", "a complete NIfTI file", "copy or download it again"
        )
