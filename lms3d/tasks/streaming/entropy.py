"""The uncertainty of a prediction: the entropy of its probabilities, in nats.

Of a mean over symmetries or networks it is the total uncertainty of Depeweg et al. (ICML 2018, arXiv:1710.07283), H[E[p]]: noise in
the data and disagreement together.
"""

from __future__ import annotations

import numpy as np


def categorical(probabilities: np.ndarray) -> np.ndarray:
    """The entropy of one distribution over the channels, which sum to 1: (.., K) -> (..) float32, 0 to ln K."""
    return -_p_log_p(probabilities).sum(axis=-1)


def independent(probabilities: np.ndarray) -> np.ndarray:
    """The sum of the entropies of each channel against the rest, for sigmoids: (.., K) -> (..) float32, 0 to K ln 2."""
    total = np.zeros(probabilities.shape[:-1], np.float32)
    for channel in range(probabilities.shape[-1]):
        p = probabilities[..., channel]
        total -= _p_log_p(p) + _p_log_p(1 - p)
    return total


def _p_log_p(p: np.ndarray) -> np.ndarray:
    """p ln p, 0 where p is 0. Rounding may put p just outside of 0 to 1."""
    p = np.clip(p, 0, 1)
    return np.log(p, out=np.zeros_like(p, dtype=np.float32), where=p > 0) * p
