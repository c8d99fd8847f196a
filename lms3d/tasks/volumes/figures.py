"""The figure that a run ends with: a validation case, segmented by the best weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lms3d.console import say
from lms3d.data import pseudonyms
from lms3d.data.volumes.planes import beyond, image_planes
from lms3d.errors import DoesNotFit
from lms3d.scoring.figures import slices
from lms3d.tasks import inference
from lms3d.tasks.streaming.segment import probabilities
from lms3d.tasks.streaming.volumes import whole
from lms3d.tasks.volumes.material import VolumeMaterial
from lms3d.tasks.volumes.options import VolumeConfig
from lms3d.training.callbacks import best_weights

if TYPE_CHECKING:
    import keras

MOST_REGIONS = 6
"""At most so many regions are outlined, the largest of the case. More colours could not be told apart."""


def draw_slice(
    run_dir: Path, options: VolumeConfig, model: keras.Model, material: VolumeMaterial, channel: int, shown: str
) -> None:
    """Draws figures/slice.png: one validation case. If its prediction does not fit, a message says so: the rest of the run is done.

    channel, shown: the index and the name of the image behind the outlines.
    """
    cache, case_id = material.cache, material.split.validation[0]
    image, truth = cache.image(case_id), cache.truth(case_id)
    assert truth is not None, "the pipeline refuses validation cases without truth"
    try:
        labels = _segmented(run_dir, options, model, material, case_id)
    except DoesNotFit as error:
        say(f"figures/slice.png is left out: {error}")
        return
    regions = cache.schema.regions
    largest = sorted(regions, key=lambda region: -np.count_nonzero(np.isin(truth, regions[region])))[:MOST_REGIONS]
    drawn = {region: values for region, values in regions.items() if region in largest}
    slices.slice_with_outlines(
        image[..., channel],
        {region: np.isin(truth, values) for region, values in drawn.items()},
        {region: np.isin(labels, values) for region, values in drawn.items()},
        run_dir / "figures" / "slice.png", title=f"{pseudonyms.of(case_id)} (validation)", shown=shown,
    )  # fmt: skip


def _segmented(
    run_dir: Path, options: VolumeConfig, model: keras.Model, material: VolumeMaterial, case_id: str
) -> np.ndarray:
    """The labels (A, B, C) that the best weights predict for a case."""
    best_weights.put_back(run_dir, model)
    patch, cache = material.shown.patch, material.cache
    with inference.rewriter(options, wanted=None, limit_bytes=options.memory_limit) as lms:
        network = (inference.predictor if patch else inference.streamer)(model, options.sample_shape(), lms=lms)
        read, outputs = image_planes(material.normalisation, cache, case_id), len(material.targets.names)
        shape = cache.shape_of(case_id)
        around = partial(beyond, material.normalisation, cache, case_id)
        with probabilities(
            network, read, shape, channels=outputs, patch=patch, scratch=run_dir, beyond=around
        ) as found:
            return whole(found, material.targets.from_channels)
