"""Seconds of an all-reduce, and of waiting for the slowest rank. NumPy alone.

1. Ring all-reduce over n members of B bytes: 2 (n-1)/n * B / bandwidth + 2 (n-1) * latency. Every member sends and receives
   n-1 parts of B/n twice: reduce-scatter, then all-gather (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009).
2. Hierarchical: reduce-scatter and all-gather within each node over its own links, and a ring over the nodes in between.
   The ranks of a node share its network port, so all B bytes pass through it.
3. Ranks in step wait for the slowest: with step times that are normal and independent, N ranks take
   mean * (1 + cv * m(N)), m(N) the expected maximum of N standard normals (0 for one, 1.03 for 4, 3.25 for 1024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True, kw_only=True)
class RingLink:
    """The connection between two neighbours of a ring."""

    bytes_per_second: float
    """The rate in one direction."""

    latency_seconds: float
    """The seconds of one step of the ring for any number of bytes: network, and starting the transfer."""

    source: str = ""

    at_least: bool = False
    """Whether the bandwidth is only known to be no less."""


def ring_seconds(members: int, size_bytes: float, link: RingLink) -> float:
    """Rule 1."""
    share = 2 * (members - 1) / members
    return share * size_bytes / link.bytes_per_second + 2 * (members - 1) * link.latency_seconds


def hierarchical_seconds(
    ranks: int, ranks_per_node: int, size_bytes: float, local: RingLink, network: RingLink
) -> float:
    """Rule 2; within one node a plain ring."""
    nodes = -(-ranks // ranks_per_node)
    inside = ring_seconds(min(ranks, ranks_per_node), size_bytes, local)
    return inside + ring_seconds(nodes, size_bytes, network)


def fit_link(members: int, sizes_bytes: Sequence[float], seconds: Sequence[float], source: str = "") -> RingLink:
    """The link that explains measured all-reduces best: rule 1, by least squares of the relative errors.

    If other work hides what the bytes cost (large all-reduces took no longer than small ones), the bandwidth is the highest that
    was seen, and at least that. ValueError with fewer than two sizes or members.
    """
    if members < 2 or len(set(sizes_bytes)) < 2:
        raise ValueError(f"{members} members, {len(set(sizes_bytes))} sizes: expected at least two of both")
    measured = np.asarray(seconds, dtype=float)
    per_byte, per_step = 2 * (members - 1) / members, 2 * (members - 1)
    terms = np.stack([per_byte * np.asarray(sizes_bytes, dtype=float), np.full(len(measured), float(per_step))], axis=1)
    inverse_bandwidth, latency = np.linalg.lstsq(terms / measured[:, None], np.ones(len(measured)), rcond=None)[0]
    if hidden := inverse_bandwidth <= 0:
        inverse_bandwidth = 1 / np.max(terms[:, 0] / measured)
        each = terms[:, 1] / measured
        latency = np.sum(each) / np.sum(each**2)
    return RingLink(
        bytes_per_second=1 / float(inverse_bandwidth),
        latency_seconds=max(float(latency), 0.0),
        source=source,
        at_least=bool(hidden),
    )


@cache
def expected_maximum(members: int) -> float:
    """Rule 3: m(N), the integral of (1 - F^N) above zero and -F^N below it, F the normal distribution function."""
    x, distribution = _normal()
    power = distribution**members
    return float(np.sum(np.where(x > 0, 1 - power, -power)) * (x[1] - x[0]))


@cache
def _normal() -> tuple[np.ndarray, np.ndarray]:
    """The middles of 4000 intervals over -8..8, and F at each."""
    x = np.linspace(-8, 8, 4001)[:-1] + 0.002
    return x, np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
