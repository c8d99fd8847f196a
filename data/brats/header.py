"""The header of a NIfTI file: read by itself, and refused where its voxels could not be used or would not fit into the file.

Every function raises DataError for a file that cannot be used, and names that file.
"""

from __future__ import annotations

import gzip
import logging
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from data.brats import frame
from data.errors import DataError

ENDINGS = (".nii.gz", ".nii")
"""In order of preference: mirrors unpack, and some keep both."""

_KINDS = {348: (nib.Nifti1Header, 352), 540: (nib.Nifti2Header, 544)}  # by the first number; where voxels may begin
_MOST_VOXELS = 2**30  # 1024^3: far above any scan, far below what a damaged header claims
_MOST_SCALE = 1e12  # of slope and intercept
_EXPANSION = 1040  # deflate cannot do better than 1032 : 1
_UNITS = {0: "unknown", 1: "meter", 2: "mm", 3: "micron"}
_MM = {"meter": 1000.0, "micron": 0.001}
GZIP = b"\x1f\x8b"
"""What a compressed file begins with."""
_SEVERE = 40  # level of nibabel's header checks: those below are mended

_silent = logging.Logger("data.brats.header", logging.CRITICAL + 1)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a header says of the grid, as far as a file on the same grid has to say it again; and where its voxels are."""

    shape: tuple[int, ...]
    """(X, Y, Z), or (X, Y, Z, C) with C > 1."""
    affine: np.ndarray
    """(4, 4) float64, voxel indices -> millimetres, whatever the unit of the header: of the sform if it has a code, else of the
    qform, else of the voxel sizes alone (see `oriented`)."""
    sform_code: int
    """0 none, 1 scanner, 2 aligned, 3 Talairach, 4 MNI; so is the next."""
    qform_code: int
    qform: np.ndarray | None
    """(4, 4) float64 in the unit of the header, where it has a code. It may differ from `affine`."""
    unit: str
    """Of the grid: "mm", "meter", "micron" or "unknown"."""
    dtype: np.dtype[Any]
    """Of the voxels as they are stored."""
    first_byte: int
    """Of the voxels, in the uncompressed file."""
    scale: tuple[float, float]
    """Slope and intercept of the stored numbers."""

    @property
    def oriented(self) -> bool:
        """Whether the header says where the voxels lie. Programs that save a bare array leave both codes 0."""
        return bool(self.sform_code or self.qform_code)

    @property
    def bytes(self) -> int:
        """Of the uncompressed file, up to its last voxel."""
        return self.first_byte + math.prod(self.shape) * self.dtype.itemsize


def read_header(path: Path) -> Header:
    """The header of the file `path`; no voxel is read."""
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


def open_file(path: Path) -> Any:
    """The file `path` for reading, uncompressed on the way: its first bytes tell, since files are renamed."""
    if not path.exists():
        found = f"a link to nothing ({path.readlink()})" if path.is_symlink() else "nothing"
        raise unusable(path, found, "a NIfTI file", "check the data set")
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait forever
        what = "a folder" if path.is_dir() else "no regular file"
        raise unusable(path, what, "a NIfTI file (.nii or .nii.gz)", "put the file in its place")
    return gzip.open(path) if is_gzip(path) else path.open("rb")


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed, whatever it is called. OSError where it cannot be read."""
    with path.open("rb") as stream:
        return stream.read(len(GZIP)) == GZIP


def nifti_image(path: Path) -> Any:
    """nibabel's image of the file `path`, as `nibabel.load` gives it where the name tells whether it is compressed."""
    with open_file(path) as stream:
        content = stream.read()
    sizes = {int.from_bytes(content[:4], "little"), int.from_bytes(content[:4], "big")}
    kind = nib.Nifti2Image if 540 in sizes else nib.Nifti1Image
    return kind.from_bytes(content)


def unusable(path: Path, found: str, expected: str, advice: str) -> DataError:
    return DataError(f"{path}: found {found}; expected {expected}; {advice}")


def unreadable(path: Path, reason: Exception) -> DataError:
    """The reason where it is a DataError, else one that says it."""
    if isinstance(reason, DataError):
        return reason
    found = f"a file that cannot be read ({str(reason) or type(reason).__name__})"
    return unusable(path, found, "a complete NIfTI file (.nii or .nii.gz)", "copy or download it again")


def text(shape: tuple[int, ...]) -> str:
    """(240, 240, 155) -> "240x240x155"."""
    return "x".join(map(str, shape))


def _parsed(start: bytes) -> Any:
    """nibabel's header of the bytes that a file starts with, not checked but for what makes it a NIfTI file."""
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
    """Lengths of the axes, without what has a single entry behind the three of space."""
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
    if slope == 0 or math.isnan(slope):  # both mean: stored as they are
        return 1.0, 0.0
    if not (abs(slope) <= _MOST_SCALE and abs(inter) <= _MOST_SCALE):
        found = f"voxels scaled by {slope:g} and shifted by {inter:g}"
        raise unusable(path, found, f"at most {_MOST_SCALE:g}", "replace the file, or set scl_slope and scl_inter")
    return slope, inter


def _in_mm(raw: Any, unit: str) -> np.ndarray:
    """Voxel indices -> millimetres (4, 4)."""
    affine = np.array(raw.get_best_affine(), np.float64)
    affine[:3] *= _MM.get(unit, 1.0)
    return affine


def _qform(raw: Any) -> np.ndarray | None:
    """None also where it is damaged and nobody asks for it."""
    try:
        affine = raw.get_qform(coded=True)[0]
    except Exception:
        return None
    return None if affine is None else np.asarray(affine, np.float64)


def _require_room(path: Path, header: Header) -> None:
    """DataError where the file is too small for the voxels that its header tells of."""
    size = path.stat().st_size
    if header.bytes > size * (_EXPANSION if is_gzip(path) else 1):
        found = f"{size:,} bytes, which cannot hold {text(header.shape)} voxels of {header.dtype}"
        raise unusable(
            path, f"a file that cannot be read ({found})", "a complete NIfTI file", "copy or download it again"
        )
