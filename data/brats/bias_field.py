"""The N4 bias field correction (Tustison et al., IEEE TMI 2010)."""

from __future__ import annotations

import numpy as np
import SimpleITK as sitk

N4_CHANNELS = ("t1", "t1ce", "t2")
"""The channels that are corrected. FLAIR is not, since N4 would take part of the oedema for a bias field."""

_SHRINK = 4  # the field is smooth, so it is fitted on every fourth voxel and applied to all


def correct_bias(array: np.ndarray) -> np.ndarray:
    """One channel (X, Y, Z) divided by its bias field, float32. Zeros stay exact zeros. A blank channel stays as it is."""
    array = array.astype(np.float32, copy=False)
    if not array.any():
        return array
    mask = array > 1e-5
    image = sitk.GetImageFromArray(np.ascontiguousarray(array))
    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    n4.SetMaximumNumberOfIterations([50, 50, 30, 20])
    both = (image, sitk.GetImageFromArray(mask.astype(np.uint8)))
    small = [sitk.Shrink(full, [_SHRINK] * 3) for full in both]
    n4.Execute(*small)
    field = np.exp(sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(image)))
    return np.where(mask, array / field, array)
