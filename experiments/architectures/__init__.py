"""Networks that are not ours, written from their papers with Keras's own layers, at sizes that two cores train."""

from experiments.architectures.networks import NETWORKS, Network

__all__ = ["NETWORKS", "Network"]
