"""The chapters of the report: a question, the published table, and the command whose results stand beside that.

At these sizes two cores finish all chapters within the hour. A chapter without a command states its needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.experiments.reporting import published
from lms3d.experiments.reporting.published import PublishedTable


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One tab of the page.

    command: what follows `python -m`; {data} and {output} stand for folders. Empty: the chapter cannot be run here, and `missing`
    says what it needs. minutes: about, on two idle cores. elsewhere: the folder that its command writes on a machine that can run
    it; shown if it exists.
    """

    name: str
    title: str
    question: str
    published: tuple[PublishedTable, ...] = ()
    command: str = ""
    minutes: float = 0.0
    missing: str = ""
    elsewhere: str = ""

    @property
    def words(self) -> list[str]:
        """The words of the command."""
        return self.command.split()


CHAPTERS = (
    Chapter(
        name="sizes",
        title="Volumes",
        question="How large are the brains, and what do the scans look like?",
        published=(published.SIZES,),
        command="data.prepare {data} --examine --cache {output}/cache",
        minutes=1,
    ),
    Chapter(
        name="resolutions",
        title="Resolution",
        question="Does a higher resolution segment better? On a few artificial brains, briefly trained: this shows the method.",
        published=(published.DICE,),
        command="experiments.compare_resolutions --low 32 --high 48 --models 1 --epochs 3 --data {data} --output {output}",
        minutes=3,
    ),
    Chapter(
        name="limits",
        title="What LMS costs",
        question="How small may the limit be, and how much longer does a step take?",
        published=(published.OVERHEAD,),
        command="experiments.lms_overhead --resolutions 64 --only times limits --minutes 10 --output {output}",
        minutes=10,
    ),
    Chapter(
        name="over-resolution",
        title="Over the resolution",
        question="What does one limit cost as the resolution rises?",
        published=(published.OVERHEAD,),
        command="experiments.lms_overhead --over-resolution --resolutions 48 64 80 --limits 250MiB --minutes 10 --output {output}",
        minutes=10,
    ),
    Chapter(
        name="floors",
        title="Smallest limits",
        question="How do the smallest limits grow with the resolution? Predicted by the planner.",
        command="experiments.floors --resolutions 64 96 128 --copied --output {output}",
        minutes=3,
    ),
    Chapter(
        name="links",
        title="Slow links",
        question="What does LMS cost if swapped tensors go through a link as slow for this machine as PCIe is for a V100?",
        published=(published.OVERHEAD,),
        command=(
            "experiments.emulated_links --resolutions 64 --emulate-link pcie3 --shares 0.5 0.35 --steps 3 --no-floor --minutes 8 "
            "--output {output}"
        ),
        minutes=8,
    ),
    Chapter(
        name="machines",
        title="Models of machines",
        question="Do models of the published machines, fitted to three numbers, predict the others? Nothing is trained.",
        published=(published.EPOCHS,),
        command="experiments.machine_models --only published --output {output}",
        minutes=1,
    ),
    Chapter(
        name="concurrent",
        title="Side by side",
        question="What do trainings that share a bus cost each other?",
        published=(published.EPOCHS,),
        command="experiments.concurrent --processes 1 2 --resolution 48 --steps 6 --memory-limit 200MiB --output {output}",
        minutes=6,
    ),
    Chapter(
        name="profile",
        title="Profile",
        question="How busy are the device and the links in a step?",
        published=(published.PROFILE,),
        command="experiments.profile --resolution 64 --memory-limit 300MiB --data {data} --output {output}",
        minutes=2,
    ),
    Chapter(
        name="gpu",
        title="GPU",
        question="What do the same promises come to on a GPU, as far as one was at hand?",
        published=(published.OVERHEAD,),
        elsewhere="runs/gpu-case-study",
        missing="A GPU, for ten minutes: `python -m experiments.gpu_case_study`; this report shows its folder.",
    ),
    Chapter(
        name="ranks",
        title="Ranks",
        question="How does training scale over ranks? Two ranks share two cores here; a model of the published cluster follows.",
        published=(published.RANKS,),
        command="experiments.scaling --ranks 1 2 --resolution 32 --epochs 3 --probe --data {data} --output {output}",
        minutes=4,
    ),
    Chapter(
        name="input",
        title="Input pipeline",
        question="Does the order of the input pipeline starve the device?",
        published=(published.IMAGES,),
        command="experiments.input_pipeline --ranks 2 --kinds alone --output {output}",
        minutes=4,
    ),
    Chapter(
        name="chexnet",
        title="Chest X-rays",
        question="DenseNet-121 or ResNet-50? On artificial radiographs, briefly trained.",
        published=(published.IMAGES,),
        command="experiments.chexnet_models --resolution 32 --epochs 2 --output {output}",
        minutes=4,
    ),
    Chapter(
        name="environment",
        title="This environment",
        question="How many images/s does ResNet-50 train, and what does the input pipeline take away? The article on the HPC "
        "environment tells this method and prints no figures; `--expect` judges a machine by one of yours.",
        command="experiments.resnet50_benchmark --ranks 1 2 --laps 4 --steps 2 --output {output}",
        minutes=4,
    ),
    Chapter(
        name="clusters",
        title="Two clusters",
        question="Bare metal or Kubernetes?",
        published=(published.CLUSTERS,),
        missing="Two clusters. On each: `python -m experiments.resnet50_benchmark --ranks 1 2 4 8`, or of CheXNet "
        "`python -m experiments.scaling --task chexnet --ranks 1 2 4 8`; then "
        "`python -m experiments.cluster_comparison A/result.json B/result.json`.",
    ),
)
