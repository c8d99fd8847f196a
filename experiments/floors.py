"""`python -m experiments.floors`: how little memory does a training step need, at which resolution?

For each resolution three limits are predicted: the smallest without LMS, the smallest with whole tensors, and the smallest in
slabs. Nothing is trained: `experiments.lms_overhead` finds such limits by training under them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from lms3d import cli, console
from lms3d.experiments.harness import command
from lms3d.experiments.harness.part import MIB
from lms3d.experiments.harness.table import write_csv

_EPILOG = """\
example:
  python -m experiments.floors --resolutions 96 128 160 192 224 256 --output floors

writes into --output: floors.csv, floors.png"""


@dataclass(frozen=True, kw_only=True)
class Floors:
    """The smallest limits of one resolution, in bytes. slab_bytes: in the finest slabs that `slabs.choice` takes."""

    resolution: int
    without_bytes: int
    whole_bytes: int
    slab_bytes: int


def _run(options: argparse.Namespace, typed: str) -> None:
    found = []
    for floors in predicted(options.model, options.resolutions, mapped=not options.copied):
        found.append(floors)
        whole, slabs = (size / floors.without_bytes for size in (floors.whole_bytes, floors.slab_bytes))
        console.say(
            f"{floors.resolution}³: {floors.without_bytes / MIB:,.0f} MiB without LMS, "
            f"{floors.whole_bytes / MIB:,.0f} MiB ({whole:.1%}) with whole tensors, "
            f"{floors.slab_bytes / MIB:,.0f} MiB ({slabs:.1%}) in slabs"
        )
    folder = Path(options.output)
    write(found, folder)
    console.say(f"wrote {folder / 'floors.csv'} and {folder / 'floors.png'}")


def predicted(model: str, resolutions: Sequence[int], *, mapped: bool = True) -> Iterator[Floors]:
    """The floors of each resolution; each takes about a minute. mapped: see `LMS`."""
    from lms3d.device import startup

    startup.start_tensorflow(limit_bytes=None, seed=0)
    import keras
    import tensorflow as tf

    import lms3d
    from lms3d import models
    from lms3d.scoring import losses

    for resolution in resolutions:
        shape = (resolution,) * 3
        network = models.build(model, input_shape=(*shape, 4))
        network.compile(keras.optimizers.Adam(5e-4), loss=losses.dice_loss, jit_compile=False)
        spec = tuple(tf.TensorSpec((1, *shape, channels), tf.float32) for channels in (4, 3))
        # Far above what the step needs: the plan is empty, and both floors are for a pool with a hard limit.
        whole, slabs = (
            lms3d.estimate(network, spec, memory_limit=1 << 42, slabs=slabs, mapped=mapped) for slabs in ("off", "auto")
        )
        assert whole.floor_bytes is not None, "it was asked for"
        assert slabs.floor_bytes is not None, "it was asked for"
        yield Floors(
            resolution=resolution,
            without_bytes=whole.unedited_limit_bytes,
            whole_bytes=whole.floor_bytes,
            slab_bytes=slabs.floor_bytes,
        )


def write(found: Sequence[Floors], folder: Path) -> None:
    """Writes floors.csv and floors.png."""
    write_csv(folder / "floors.csv", [one.name for one in fields(Floors)], map(asdict, found))
    _draw(found, folder / "floors.png")


def _draw(found: Sequence[Floors], path: Path) -> None:
    from lms3d.scoring.figures.style import BLUE, GREY, ORANGE, plain, plt, save

    figure, axis = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    sides = [one.resolution for one in found]
    for label, colour, sizes in (
        ("without LMS", GREY, [one.without_bytes for one in found]),
        ("LMS, whole tensors", ORANGE, [one.whole_bytes for one in found]),
        ("LMS in slabs", BLUE, [one.slab_bytes for one in found]),
    ):
        axis.plot(sides, [size / (1 << 30) for size in sizes], color=colour, marker="o", label=label)
    axis.set_yscale("log")
    axis.set_yticks([0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32], ["1/8", "1/4", "1/2", "1", "2", "4", "8", "16", "32"])
    axis.minorticks_off()
    axis.set_xticks(sides, [f"{side}³" for side in sides])
    axis.set_xlabel("volume")
    axis.set_ylabel("smallest memory limit (GiB, predicted)")
    axis.legend(frameon=False)
    plain(axis)
    save(figure, path)


def _options(parser: cli.Parser) -> None:
    add, sides = parser.add_argument, [96, 128, 160, 192]
    command.add_model(parser)
    shown = "sides of the cubes (default: 96 128 160 192)"
    add("--resolutions", type=cli.resolution, nargs="+", metavar="N", default=sides, help=shown)
    add("--copied", action="store_true", default=False, help="copy back what was swapped, as to a GPU (default: off)")
    command.add_output(parser, "floors")


main, _parser = command.of("floors", _run, _options, __doc__, _EPILOG)


if __name__ == "__main__":
    sys.exit(main())
