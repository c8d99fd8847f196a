"""Links of real machines, and links of this machine that bear the same ratio to what it computes. No TensorFlow here.

A step of the same network takes the same FLOPs everywhere, so that bytes per FLOP are equal if bytes per step are:

    rate here = link there * seconds of a step there / seconds of a step here

The sources of the figures:

| figure                     | value              | source                                                                     |
|----------------------------|--------------------|----------------------------------------------------------------------------|
| step at 144^3, V100 in x86 | 216 s / 228        | LMS case study, seconds per epoch without LMS, 228 subjects                |
| the same, V100 in AC922    | 197 s / 228        | the same                                                                   |
| PCIe Gen3 x16              | 11 GB/s            | the same, profile: 10.9 and 11.7 GB/s; 15.75 GB/s by the standard          |
| NVLink 2.0, CPU to GPU     | 62 GB/s            | the same, profile: 64.4 and 60.4 GB/s                                      |
| step at 192^3, H200        | 0.088 s            | docs/gpu.md, the third run, 2026-11-27, without LMS                        |
| PCIe Gen5 x16              | as its machine     | `lms3d/machines/h200-sxm.json`, with the source                            |
| step, GH200                | 197 s / 228 / 3.72 | assumed: by the bandwidth of memory, H100 SXM 3,350, V100 900 GB/s         |
| NVLink-C2C                 | as its machine     | `lms3d/machines/gh200.json`, with the source                               |
| a copy's own time          | 10 us              | assumed: launch and set-up                                                 |

Epochs hold loading and validation, too: real steps are shorter, and the links here then a little too fast. The case study's
epochs of 144^3 are without LMS; its graph has stock up-sampling and concatenation, which moves more bytes for the same FLOPs.
The H200's step is a step of this project, alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.errors import InputError
from lms3d.experiments.harness import published
from lms3d.experiments.links.link import SwapLink
from lms3d.machines import machine_files

SIDE = published.LOW
COPY_SECONDS = 10e-6
X86_SECONDS, AC922_SECONDS = (
    run.epoch_seconds / published.SUBJECTS for run in (published.X86_LOW, published.AC922_LOW)
)
GH200_SECONDS = AC922_SECONDS * 900 / 3350
H200_SECONDS = 0.088 * (SIDE / 192) ** 3


@dataclass(frozen=True, kw_only=True)
class RealLink:
    """A link and the seconds of a training step of isensee2017 at 144^3, batch 1, on the device behind it."""

    title: str
    out_bytes_per_second: float
    back_bytes_per_second: float
    step_seconds: float

    def here(self, step_seconds: float, side: int) -> SwapLink:
        """The link for this machine, on which a step at side^3 voxels takes `step_seconds`. FLOPs are in proportion to voxels."""
        slower = step_seconds * (SIDE / side) ** 3 / self.step_seconds
        return SwapLink(
            out_bytes_per_second=self.out_bytes_per_second / slower,
            back_bytes_per_second=self.back_bytes_per_second / slower,
            latency_seconds=COPY_SECONDS * slower,
        )


def _of_model(name: str, title: str, step_seconds: float) -> RealLink:
    """The link of a machine of `lms3d.machines`."""
    model = machine_files.load(name)
    return RealLink(
        title=title, step_seconds=step_seconds, out_bytes_per_second=model.to_host_bytes_per_second.value,
        back_bytes_per_second=model.to_device_bytes_per_second.value,
    )  # fmt: skip


REAL = {
    "pcie3": RealLink(
        title="V100, PCIe Gen3", out_bytes_per_second=11e9, back_bytes_per_second=11e9, step_seconds=X86_SECONDS
    ),
    "nvlink2": RealLink(
        title="V100, NVLink 2.0", out_bytes_per_second=62e9, back_bytes_per_second=62e9, step_seconds=AC922_SECONDS
    ),
    "pcie5": _of_model("h200-sxm", "H200, PCIe Gen5", H200_SECONDS),
    "c2c": _of_model("gh200", "GH200, NVLink-C2C", GH200_SECONDS),
}


def checked(name: str) -> str:
    """A name in `REAL`, or the word of a link; InputError for anything else."""
    if name in REAL:
        return name
    try:
        SwapLink.parse(name)
    except InputError as error:
        raise InputError(f"{error}; or one of {', '.join(REAL)}") from None
    return name


def link(name: str, step_seconds: float, side: int) -> SwapLink:
    """The link for this machine of a name that `checked` has accepted."""
    return REAL[name].here(step_seconds, side) if name in REAL else SwapLink.parse(name)


def title(name: str) -> str:
    """The name of a link in tables."""
    return REAL[name].title if name in REAL else name
