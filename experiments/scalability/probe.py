"""Bandwidth and latency between the ranks of this machine, from real all-reduces. No TensorFlow at import.

A rank is this module as a program, which times all-reduces; rank 0 writes them:

    horovodrun -np 2 python -m experiments.scalability.probe OUTPUT.json

The reductions go through Horovod, as in training: its negotiation between ranks is part of the latency.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms3d import cli
from lms3d.errors import InputError
from lms3d.experiments.harness.ranks import Launcher
from lms3d.experiments.harness.table import markdown
from lms3d.experiments.scalability.model import RingLink, fit_link, ring_seconds
from lms3d.units import format_size

PATIENCE_SECONDS = 300.0
ADVICE = "run it anew with --probe"


SIZES_BYTES = tuple(4**k for k in range(5, 13))  # 1 KiB .. 16 MiB
LARGEST_BYTES = 4 * 8_269_561  # the gradients of isensee2017
REPEATS, WARM_UP = 9, 2


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measured all-reduces, and the link that explains them."""

    ranks: int
    all_reduces: tuple[tuple[int, float], ...]
    """(bytes, seconds)."""

    link: RingLink

    def markdown(self) -> str:
        rows = []
        for size, seconds in self.all_reduces:
            fitted = ring_seconds(self.ranks, size, self.link)
            rows.append([format_size(size), _seconds(seconds), _seconds(fitted), f"{fitted / seconds - 1:+.0%}"])
        bound = "At least " if self.link.at_least else ""
        note = (
            f"{bound}{format_size(self.link.bytes_per_second)}/s and {_seconds(self.link.latency_seconds)} for a step of the "
            f"ring (Horovod's negotiation included), fitted to these medians with {self.ranks} ranks on this machine."
        )
        if self.link.at_least:
            note += " Large all-reduces took no longer than small ones: other work hides the bandwidth."
        head = ("all-reduce of", "measured", "by the fit", "error")
        return f"## Links of this machine\n\n{markdown(head, rows)}\n\n{note}"


def run(launcher: Launcher, ranks: int, folder: Path) -> Probe:
    """Measures and writes probe.json. RunFailed with the last words of a rank."""
    path = folder / "probe.json"
    path.unlink(missing_ok=True)
    program = [sys.executable, "-m", "lms3d.experiments.scalability.probe", str(path.resolve())]
    launcher.run(ranks, program, folder / "logs" / "probe.txt", patience_seconds=PATIENCE_SECONDS)
    return load(path)


def load(path: Path) -> Probe:
    """The probe in a file. InputError if --probe did not write it."""
    try:
        content = json.loads(path.read_text())
        ranks, pairs = int(content["ranks"]), tuple((int(size), float(s)) for size, s in content["all_reduces"])
        link = fit_link(ranks, [size for size, _ in pairs], [s for _, s in pairs])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error}; expected what --probe writes; {ADVICE}") from None
    return Probe(ranks=ranks, all_reduces=pairs, link=link)


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def main(arguments: list[str]) -> None:
    parser = cli.Parser(prog="python -m experiments.scalability.probe", description="A rank that times all-reduces.")
    parser.add_argument("output", type=cli.path, metavar="OUTPUT.json", help="the file that rank 0 writes")
    output = parser.parse_args(arguments).output
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from lms3d.atomic_files import write_json

    hvd.init()
    rows = [[size, _all_reduce_seconds(hvd, tf, size)] for size in (*SIZES_BYTES, LARGEST_BYTES)]
    if hvd.rank() == 0:
        devices = [device.device_type for device in tf.config.list_physical_devices()]
        write_json(output, {"ranks": hvd.size(), "devices": devices, "all_reduces": rows})
    hvd.shutdown()


def _all_reduce_seconds(hvd: Any, tf: Any, size_bytes: int) -> float:
    """The median of some all-reduces of that many bytes; their sum is checked."""
    tensor, together, name, found = tf.ones([size_bytes // 4]), tf.ones([1]), f"probe_{size_bytes}", []
    for repeat in range(WARM_UP + REPEATS):
        hvd.allreduce(together, op=hvd.Sum, name="together")  # all ranks start at the same time
        started = time.perf_counter()
        total = hvd.allreduce(tensor, op=hvd.Sum, name=name)
        last = float(total[-1])
        if repeat >= WARM_UP:
            found.append(time.perf_counter() - started)
        if last != hvd.size():
            raise RuntimeError(f"the sum of ones over {hvd.size()} ranks is {last}")
    return statistics.median(found)


if __name__ == "__main__":
    main(sys.argv[1:])
