"""The tables of the four articles whose measurements this project repeats, as their authors printed them.

LMS case study     TensorFlow Large Model Support with a 3D image segmentation model, IBM, 2018
CheXNet scaling    Dell HPC & AI lab, 2019
HPC environment    Horovod and NCCL on a classic cluster, Dell, 2019
bare metal         bare metal against Kubernetes, Dell, 2019
"""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.experiments.harness.published import EFFICIENCY, EPOCH_SECONDS, GROWTH, PROFILES, RUNS

CASE_STUDY, CHEXNET, BARE_METAL = "LMS case study", "CheXNet scaling", "bare metal against Kubernetes"


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One published table: rows as text, as printed."""

    title: str
    source: str = CASE_STUDY
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


SIZES = PublishedTable(
    title="Table 1: voxels of the cropped BraTS 2017 volumes",
    head=("", "X", "Y", "Z"),
    rows=(
        ("mean", "140", "171", "140"),
        ("median", "140", "171", "140"),
        ("smallest", "124", "151", "121"),
        ("largest", "159", "191", "150"),
    ),
)
DICE = PublishedTable(
    title="Dice by resolution, means over four models, box plots in the article",
    head=("compared", "whole tumour", "tumour core", "enhancing tumour"),
    rows=(
        ("192³ with 144³", "slightly better", "about equal", "upper quartiles a little better"),
        ("144³ with 112³", "much better", "much better", "much better"),
    ),
)
EPOCHS = PublishedTable(
    title="Seconds of an epoch, independent models side by side: 228 subjects, batch 1, V100",
    head=("run", "each GPU", "mean"),
    rows=tuple(
        (
            f"{run.title}, {run.side}³, {'LMS' if run.lms else 'no LMS'}",
            " ".join(f"{seconds:.0f}" for seconds in run.epochs),
            f"{int(run.epoch_seconds + 0.5)}",
        )
        for run in RUNS
    ),
)
PROFILE = PublishedTable(
    title="Profile of 30 batches at 192³ with LMS",
    head=("system", "GPU busy", "host to GPU GB/s", "GPU to host GB/s"),
    rows=tuple(
        (
            one.title,
            f"{100 * one.busy_share:.1f} %",
            f"{one.in_bytes_per_second / 1e9:.1f}",
            f"{one.out_bytes_per_second / 1e9:.1f}",
        )
        for one in PROFILES
    ),
)
OVERHEAD = PublishedTable(
    title="What LMS costs at 192³, from the epoch seconds: time per voxel, relative to 144³ without LMS",
    head=("system", "voxels", "seconds", "time per voxel"),
    rows=tuple(
        (f"{one.system}, {one.link}", *(f"{value:.2f} x" for value in (one.voxels, one.seconds, one.per_voxel)))
        for one in GROWTH
    ),
)
RANKS = PublishedTable(
    title="Table 7: one model on several GPUs, 192³, 4 GPUs a node, 100 Gb/s",
    head=("GPUs", "epoch s", "speed-up", "efficiency"),
    rows=tuple(
        (
            str(ranks),
            f"{seconds:.0f}",
            *((f"{ranks * EFFICIENCY[ranks]:.2f}", f"{100 * EFFICIENCY[ranks]:.2f} %") if ranks > 1 else ("", "")),
        )
        for ranks, seconds in EPOCH_SECONDS.items()
    ),
)
IMAGES = PublishedTable(
    title="Images per second of the published code, DenseNet-121, V100",
    source=CHEXNET,
    head=("GPUs", "images/s"),
    rows=(("1", "185"), ("16", "1913")),
)
CLUSTERS = PublishedTable(
    title="The same training under Slurm and on Kubernetes, 1 to 8 GPUs on 2 nodes",
    source=BARE_METAL,
    head=("GPUs", "bare metal, relative to Kubernetes"),
    rows=(("8", "up to 8 % faster"),),
)
