"""`python -m experiments.prediction_memory`: how much memory does a prediction from disk to disk take?

An artificial volume in, a label map and its uncertainty out, slab by slab: the seconds and the memory that this process
takes. The network is a small U-Net with random weights; the grid of the files is as fine as the network's, or --native.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lms3d import cli
from lms3d.experiments.harness import command
from lms3d.experiments.harness.talk import Resident
from lms3d.units import format_size

_EPILOG = """\
examples:
  python -m experiments.prediction_memory --side 512 --memory-limit 320MiB
  python -m experiments.prediction_memory --side 256 --outputs 100 --memory-limit 400MiB
  python -m experiments.prediction_memory --side 128 --depth 256 --memory-limit 100MiB      # twice the depth of a cube
"""


def _measure(options: argparse.Namespace, typed: str) -> None:
    from lms3d.device import startup

    startup.start_tensorflow(limit_bytes=options.memory_limit)
    import keras

    import lms3d
    from lms3d import models
    from lms3d.tasks import inference

    shape = (options.side, options.side, options.depth or options.side)
    keras.utils.set_random_seed(0)
    model = models.build("unet3d", input_shape=(*shape, 1), outputs=options.outputs, filters=(4, 8, 8))
    with TemporaryDirectory(dir=options.folder) as folder:
        memory = Resident()
        lms = lms3d.LMS(tier="disk", swap_dir=folder, mapped=not options.copied)
        begun = time.monotonic()
        network = inference.streamer(model, shape, lms=lms)
        planned, sliced = time.monotonic(), lms.report.slabs if lms.report else ()
        _predict(network, shape, options, Path(folder))
        lms.close()
        seconds, most = time.monotonic() - planned, memory.idle_bytes + memory.take_peak()
    print(f"{'x'.join(map(str, shape))}, {options.outputs} outputs, limit {format_size(options.memory_limit)}")
    print(f"planned in {planned - begun:.0f} s, predicted in {seconds:.0f} s; slabs {sliced or 'none'}")
    print(f"before: {format_size(memory.idle_bytes)}; at most {format_size(most)} of its own", end="")
    print(f", and {format_size(memory.whole_bytes)} with pages of files, which the system may take back")
    print(f"probabilities as a whole: {format_size(int(np.prod(shape)) * options.outputs * 4)}")


def _predict(network: Any, shape: tuple[int, int, int], options: argparse.Namespace, folder: Path) -> None:
    from lms3d.data.volumes.geometry import Box
    from lms3d.tasks.streaming import entropy, nifti
    from lms3d.tasks.streaming.segment import probabilities
    from lms3d.tasks.streaming.volumes import Placed, Resized
    from lms3d.tasks.volumes import label_maps

    def read(first: int, end: int) -> np.ndarray:
        random = np.random.default_rng(first)
        return random.normal(size=(end - first, *shape[1:], 1)).astype(np.float32)

    native = (options.native or shape[0], options.native or shape[1], options.native or shape[2])
    with probabilities(network, read, shape, channels=options.outputs, scratch=folder) as found:
        placed = Placed(Resized(found, native), Box(lower=(0, 0, 0), upper=native), native)
        header = label_maps.header_at(np.eye(4), native)
        nifti.write(placed, folder / "labels.nii.gz", header, lambda p: p.argmax(axis=-1))
        header.set_data_dtype(np.float32)
        nifti.write(placed, folder / "uncertainty.nii", header, entropy.independent)


def _options(parser: cli.Parser) -> None:
    add, count = parser.add_argument, cli.whole(1)
    add("--side", type=count, metavar="N", default=256, help="voxels along each axis (default: 256)")
    add("--depth", type=count, metavar="N", default=None, help="voxels along the third axis (default: the side)")
    native = "voxels along each axis of the files' grid (default: the network's)"
    add("--native", type=count, metavar="N", default=None, help=native)
    add("--outputs", type=count, metavar="N", default=3, help="channels of the network's output (default: 3)")
    command.add_size(parser, "--memory-limit", "320MiB", "TensorFlow's limit (default: 320MiB)")
    copied = "copy back what was swapped, so that no page of a file is mapped (default: off)"
    add("--copied", action="store_true", default=False, help=copied)
    folder = "where files lie (default: the system's temporary folder)"
    add("--folder", type=cli.path, metavar="DIR", default=None, help=folder)


main, _parser = command.of(
    "prediction_memory", _measure, _options, __doc__, _EPILOG, exits={3: "does not fit into the limit"}
)


if __name__ == "__main__":
    sys.exit(main())
