"""The real command under a real limit in which the whole inference does not fit: slabs give the same segmentation."""

import json
import os
from pathlib import Path

import keras
import nibabel as nib
import numpy as np
import pytest

from lms3d import models
from lms3d.data import split
from lms3d.data.brats import layouts
from lms3d.data.brats.preprocess import cube
from lms3d.data.phantoms import brains as phantom
from lms3d.data.volumes import cache, normalise
from lms3d.tasks.brats.options import BratsConfig
from tests.caches import private_cache

RESOLUTION = 64  # 32 MiB for each tensor of the first level


@pytest.fixture(scope="module")
def predict(tmp_path_factory, commands):
    """`predict(...)`: runs the command on a run folder with random weights; exit code, output and label map of its one case."""
    folder = tmp_path_factory.mktemp("predict")
    brains = phantom.write(folder / "brains", cases=2, spacing_mm=8, workers=1)
    run_dir, cubes = folder / "run", private_cache(folder / "cache")
    run_dir.mkdir()
    cases, _ = layouts.find_cases(brains)
    shown, unseen = (case.id for case in cases)
    split.save(split.Split(training=(shown,), validation=(unseen,)), run_dir / "split.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMS3D_CACHE", str(cubes))
        built = cache.build(*layouts.find_cases(brains), cube(RESOLUTION, anti_alias=True), workers=1)
    options = BratsConfig(data=brains, resolution=RESOLUTION, model="unet3d")
    content = {"options": options.to_json(), "normalisation": normalise.fit("global", built, (shown,)).to_json()}
    (run_dir / "config.json").write_text(json.dumps(content))
    keras.utils.set_random_seed(0)
    shape = (RESOLUTION,) * 3 + (4,)
    models.build("unet3d", input_shape=shape, filters=(32, 32, 32)).save(run_dir / "best.keras")

    def run(*arguments: str) -> tuple[int, str, Path]:
        output = folder / "-".join(arguments).strip("-")
        words = ["-m", "lms3d.predict", run_dir, "--output", output, *arguments]
        done = commands.run(words, env={**os.environ, "LMS3D_CACHE": str(cubes)}, merged=True, timeout=400)
        return done.returncode, done.stdout, output / "cube" / f"{unseen}.nii.gz"

    return run


def test_slabs_segment_where_the_whole_inference_does_not_fit(predict):
    code, output, whole = predict("--memory-limit", "400MiB")
    assert code == 0, output
    assert "Slabs" not in output
    code, output, _ = predict("--memory-limit", "60MiB", "--slabs", "off")
    assert code == 3, output
    assert 'slabs are off (slabs="off")' in output
    code, output, sliced = predict("--memory-limit", "60MiB")
    assert code == 0, output
    assert "Slabs: level 0 (64 x 64 x 64) in " in output
    assert "results equal those of the whole step to rounding" in output
    one, other = (np.asarray(nib.load(path).dataobj) for path in (whole, sliced))
    assert len(np.unique(one)) > 1
    assert (one != other).sum() <= 5  # voxels with a tie of two classes
