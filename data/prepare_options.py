"""The options of `lms3d.data.prepare`. Nothing here, and nothing that it imports, needs the packages for images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from lms3d.common import program
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError

CUBE, SQUARE = 192, 224
"""The sides of a cube and of a square without --resolution."""

_DESCRIPTION = """\
Check a data set and build its training cache. Training does the same by itself; do it ahead to find bad files early, or
on another machine. DATA is the folder of an unpacked data set:

BraTS 2017 to 2025, TCIA (Pre-operative TCGA), Task01_BrainTumour of the Medical Segmentation Decathlon, or a manifest. Every
case is examined first: the size of its brain, voxels, intensities, labels, and modalities that may be exchanged. Then it is
cropped to the brain, resized to a cube (or cut to a box of 1 mm voxels, which resizes nothing) and stored. Folders are
searched to any depth.

Any organ, for --task segmentation: a raw folder of nnU-Net, a task of the Decathlon, or a manifest that names channels and
labels. Volumes become cubes, boxes of a spacing, or keep their own shapes at a spacing.

ChestX-ray14, recognised by its Data_Entry_2017.csv. Every image is read, made grey and square, and stored in TFRecord shards
of 256, split by patient into training, validation and test (by the official lists, if the data set has them)."""

_EPILOG = """\
examples:
  python -m lms3d.data.prepare ~/MICCAI_BraTS2020_TrainingData --resolution 144
  python -m lms3d.data.prepare ~/MICCAI_BraTS2020_TrainingData --examine
  python -m lms3d.data.prepare ~/MICCAI_BraTS2020_TrainingData --box 160x192x160 --skip-bad
  python -m lms3d.data.prepare ~/nnUNet_raw/Dataset017_Liver --spacing median
  python -m lms3d.data.prepare ~/my_cases --labels brats2023 --resolution 96 --cache /fast/disk
  python -m lms3d.data.prepare ~/ChestX-ray14 --resolution 224 --skip-bad

exit codes: 0 done, 2 wrong option or wrong input (one line says which file), 130 interrupted (run again to go on)"""


def _place(text: str) -> Path:
    """The path of a file or folder. "" is refused: it comes from a shell variable that was not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path; name a file or a folder")
    return Path(text).expanduser()


class _Parser(argparse.ArgumentParser):
    """A parser that reports a wrong option in one line, without the usage that argparse would print."""

    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    """The parser. It raises DataError for a wrong option."""
    layout = argparse.RawDescriptionHelpFormatter
    made = _Parser(
        prog=program.started_as("lms3d.data.prepare"), description=_DESCRIPTION, epilog=_EPILOG, formatter_class=layout
    )
    add = made.add_argument
    add("--version", action="version", version=program.version(), help="print the version of lms3d and exit")
    add("data", type=_place, metavar="DATA", help="folder of the data set, or a manifest of scans (.csv, .json)")
    edge = f"edge of the cube, a multiple of 16 (default: {CUBE}), or of the square, 32 to 1024 (default: {SQUARE})"
    kinds = "what the data are for (default: segmentation if they name their channels, else brats)"
    add("--task", choices=("brats", "segmentation"), help=kinds)
    add("--resolution", type=int, metavar="N", help=edge)
    labels = f"what the labels mean, if the names of the files do not say: {', '.join(SCHEMAS)}"
    add("--labels", metavar="SCHEMA", help=labels)
    corrected = "correct the bias field of t1, t1ce and t2, once cropped (slow; default: off)"
    add("--n4", action="store_true", default=None, help=corrected)
    add(
        "--box",
        metavar="XxYxZ",
        help="voxels of 1 mm around the brain, or of --spacing, such as 160x192x160, instead of a cube",
    )
    smooth = "before volumes are made smaller, remove detail that they cannot hold (default: on)"
    sized = "size of a voxel in mm, or median, for --task segmentation (default: median with --box, else a cube)"
    add("--spacing", metavar="XxYxZ", help=sized)
    add("--anti-alias", action=argparse.BooleanOptionalAction, help=smooth)
    alone = "only examine volumes: print sizes, spacings, labels, intensities; for --task segmentation also a fitting command"
    add("--examine", action="store_true", default=None, help=alone)
    most = (
        "with --examine and --task segmentation: the memory for which a grid is proposed (default: what the device has)"
    )
    add("--memory-limit", metavar="SIZE", help=most)
    skip = "leave out cases and images that cannot be used, and list them in skipped.csv"
    add("--skip-bad", action="store_true", help=skip)
    hidden = "print pseudonyms instead of the names of cases, patients and images in all messages (default: off)"
    add("--anonymous", action="store_true", help=hidden)
    whose = (
        "only list the pseudonyms of --anonymous on this machine with the names behind them; do not pass the list on"
    )
    add("--pseudonyms", action="store_true", help=whose)
    folder = "folder of the caches, cubes/ or images/; then train with LMS3D_CACHE=DIR (default: $LMS3D_CACHE or ~/.cache/lms3d)"
    add("--cache", type=_place, metavar="DIR", help=folder)
    add("--workers", type=int, metavar="N", help="processes (default: one per core, at most 16)")
    return made
