"""Several processes that train one model: the world of ranks, collectives, averaged gradients, lost and new ranks."""
