"""What a prediction takes of memory and disk: a volume on disk in, a label map and its uncertainty out, in a process of its own.

    python -m experiments.prediction_memory --side 512 --memory-limit 320MiB
    python -m experiments.prediction_memory --side 256 --outputs 100 --memory-limit 400MiB
    python -m experiments.prediction_memory --side 128 --depth 256 --memory-limit 100MiB      # twice the depth of a cube

The network is a small U-Net with random weights. The grid of the files is as fine as the network's, or --native.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lms3d.units import format_size, parse_size

_PERIOD_SECONDS = 0.05


def main() -> None:
    options = _parser().parse_args()
    from lms3d.device import startup

    startup.start_tensorflow(limit_bytes=options.memory_limit)
    import keras

    import lms3d
    from lms3d import models
    from lms3d.tasks import inference

    shape = (options.side, options.side, options.depth or options.side)
    keras.utils.set_random_seed(0)
    model = models.build("unet3d", input_shape=(*shape, 1), outputs=options.outputs, filters=(4, 8, 8))
    with TemporaryDirectory(dir=options.folder) as folder, _watched() as memory:
        lms = lms3d.LMS(tier="disk", swap_dir=folder, mapped=not options.copied)
        begun = time.monotonic()
        network = inference.streamer(model, shape, lms=lms)
        planned, sliced = time.monotonic(), lms.report.slabs if lms.report else ()
        _predict(network, shape, options, Path(folder))
        lms.close()
        seconds = time.monotonic() - planned
    print(f"{'x'.join(map(str, shape))}, {options.outputs} outputs, limit {format_size(options.memory_limit)}")
    print(f"planned in {planned - begun:.0f} s, predicted in {seconds:.0f} s; slabs {sliced or 'none'}")
    print(f"before: {format_size(memory.before)}; at most {format_size(memory.anonymous)} of its own", end="")
    print(f", and {format_size(memory.whole)} with pages of files, which the system may take back")
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


class _Memory:
    """The bytes of this process: before, and the most at once, its own alone and with pages of files."""

    def __init__(self) -> None:
        self.before, _ = self._now()
        self.anonymous = self.whole = 0
        self.ended = threading.Event()

    def watch(self) -> None:
        while not self.ended.wait(_PERIOD_SECONDS):
            own, whole = self._now()
            self.anonymous, self.whole = max(self.anonymous, own), max(self.whole, whole)

    @staticmethod
    def _now() -> tuple[int, int]:
        lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
        values = {line[0].rstrip(":"): int(line[1]) << 10 for line in lines if line[-1:] == ["kB"]}
        return values["RssAnon"], values["VmRSS"]


@contextmanager
def _watched() -> Iterator[_Memory]:
    memory = _Memory()
    thread = threading.Thread(target=memory.watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        memory.ended.set()
        thread.join()


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--side", type=int, default=256, help="voxels along each axis (default: 256)")
    add("--depth", type=int, default=None, help="voxels along the third axis (default: the side)")
    add("--native", type=int, default=None, help="voxels along each axis of the files' grid (default: the network's)")
    add("--outputs", type=int, default=3, help="channels of the network's output (default: 3)")
    add("--memory-limit", type=parse_size, default=parse_size("320MiB"), help="TensorFlow's limit (default: 320MiB)")
    add("--copied", action="store_true", help="swapped tensors are copied back, so that no page of a file is mapped")
    add("--folder", type=Path, default=None, help="where files lie (default: the system's temporary folder)")
    return parser


if __name__ == "__main__":
    main()
