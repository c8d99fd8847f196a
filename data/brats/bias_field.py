"""N4 bias field correction (Tustison et al., IEEE TMI 2010)."""

from __future__ import annotations

import numpy as np
import SimpleITK as sitk

from data.brats.schema import CHANNELS

N4_CHANNELS = ("t1", "t1ce", "t2")
"""FLAIR is left as it is: N4 would take part of the oedema for a bias field."""

_SHRINK = 4  # the field is smooth: found on every fourth voxel, applied to all


def correct_bias(images: np.ndarray) -> np.ndarray:
    """N4_CHANNELS of images (X, Y, Z, 4), corrected; a copy."""
    corrected = images.astype(np.float32)
    for index, channel in enumerate(CHANNELS):
        if channel in N4_CHANNELS and corrected[..., index].any():
            corrected[..., index] = _without_bias(corrected[..., index])
    return corrected


def _without_bias(array: np.ndarray) -> np.ndarray:
    """One channel (X, Y, Z) divided by its bias field. Zeros stay exact zeros."""
    mask = array > 1e-5
    image = sitk.GetImageFromArray(np.ascontiguousarray(array))
    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    n4.SetMaximumNumberOfIterations([50, 50, 30, 20])
    small = [sitk.Shrink(one, [_SHRINK] * 3) for one in (image, sitk.GetImageFromArray(mask.astype(np.uint8)))]
    n4.Execute(*small)
    field = np.exp(sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(image)))
    return np.where(mask, array / field, array)
