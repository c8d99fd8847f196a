"""What the LMS case study published (IBM, 2018): epoch seconds of 228 subjects, profiles of 30 batches at 192^3, and Table 7."""

from __future__ import annotations

from dataclasses import dataclass

SUBJECTS = 228
X86, AC922, AC922_6 = "v100-pcie-16gb", "ac922", "ac922-6"
LOW, HIGH = 144, 192
"""Sides of the cubes: the largest without LMS in 16 GB, and the one that LMS made possible."""
NEXT = 160
"""The multiple of 16 that no longer fits without LMS."""


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A row of the case study's tables. sharers: models on one link, this one included. epochs: the seconds on each such GPU."""

    title: str
    machine: str
    side: int
    sharers: int = 1
    epochs: tuple[float, ...]

    @property
    def lms(self) -> bool:
        return self.side == HIGH

    @property
    def epoch_seconds(self) -> float:
        return sum(self.epochs) / len(self.epochs)


@dataclass(frozen=True, kw_only=True)
class PublishedProfile:
    """A profile of 30 batches at 192^3 with LMS. busy_share: GPU utilisation. Bytes per second while something is copied."""

    title: str
    machine: str
    sharers: int = 1
    busy_share: float
    in_bytes_per_second: float
    out_bytes_per_second: float


X86_LOW = PublishedRun(title="x86, 1 GPU", machine=X86, side=LOW, epochs=(216,))
AC922_LOW = PublishedRun(title="AC922, 1 GPU", machine=AC922, side=LOW, epochs=(197,))
X86_HIGH = PublishedRun(title="x86, 1 GPU", machine=X86, side=HIGH, epochs=(1467,))
AC922_HIGH = PublishedRun(title="AC922, 1 GPU", machine=AC922, side=HIGH, epochs=(590,))
AC922_APART = PublishedRun(title="AC922, 4 GPUs", machine=AC922, side=HIGH, epochs=(594, 602, 598, 605))
AC922_SIX = PublishedRun(title="AC922, 6 GPUs", machine=AC922_6, side=HIGH, epochs=(674, 674, 681, 675, 672, 682))
X86_APART = PublishedRun(title="x86, 4 GPUs, one on each bus", machine=X86, side=HIGH, epochs=(1520, 1508, 1496, 1498))
X86_PAIRS = PublishedRun(
    title="x86, 8 GPUs, two on each bus", machine=X86, side=HIGH, sharers=2,
    epochs=(2110, 2108, 2146, 2116, 2025, 2025, 2038, 2038),
)  # fmt: skip
RUNS = (
    X86_LOW,
    AC922_LOW,
    PublishedRun(title="x86, 4 GPUs, one on each bus", machine=X86, side=LOW, epochs=(219, 219, 218, 218)),
    PublishedRun(title="AC922, 4 GPUs", machine=AC922, side=LOW, epochs=(195, 198, 198, 209)),
    X86_HIGH,
    AC922_HIGH,
    X86_APART,
    AC922_APART,
    PublishedRun(title="x86, 6 GPUs: those alone on a bus", machine=X86, side=HIGH, epochs=(1514, 1506)),
    PublishedRun(
        title="x86, 6 GPUs: those in pairs", machine=X86, side=HIGH, sharers=2, epochs=(2067, 2081, 1991, 1991)
    ),
    AC922_SIX,
    X86_PAIRS,
)
PROFILES = (
    PublishedProfile(title="x86, one GPU on each bus", machine=X86, busy_share=0.291,
            in_bytes_per_second=10.9e9, out_bytes_per_second=11.7e9),
    PublishedProfile(title="AC922 with 4 GPUs", machine=AC922, busy_share=0.735,
            in_bytes_per_second=64.4e9, out_bytes_per_second=60.4e9),
    PublishedProfile(title="x86, two GPUs on each bus", machine=X86, sharers=2, busy_share=0.226,
            in_bytes_per_second=7.6e9, out_bytes_per_second=8.2e9),
    PublishedProfile(title="AC922 with 6 GPUs", machine=AC922_6, busy_share=0.663,
            in_bytes_per_second=45.8e9, out_bytes_per_second=43.5e9),
)  # fmt: skip
GAP_SECONDS = 44.0
"""The time between batches in an epoch, on x86 at 192^3."""

CALIBRATED = (AC922_LOW, X86_LOW, X86_HIGH)
"""The runs that the models of machines are fitted to; they predict all the others."""

EPOCH_SECONDS = {1: 590.0, 4: 150.0, 8: 76.0, 16: 40.0}
EFFICIENCY = {4: 0.9833, 8: 0.9704, 16: 0.9219}
"""Table 7, by the number of GPUs: one model at 192^3 with LMS on nodes of 4 GPUs."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What 192^3 with LMS takes relative to 144^3 without, on one GPU."""

    system: str
    link: str
    high: PublishedRun
    low: PublishedRun

    @property
    def voxels(self) -> float:
        return (self.high.side / self.low.side) ** 3

    @property
    def seconds(self) -> float:
        return self.high.epoch_seconds / self.low.epoch_seconds

    @property
    def per_voxel(self) -> float:
        return self.seconds / self.voxels


GROWTH = (
    Growth(system="AC922", link="NVLink 2.0", high=AC922_HIGH, low=AC922_LOW),
    Growth(system="x86", link="PCIe Gen3", high=X86_HIGH, low=X86_LOW),
)
