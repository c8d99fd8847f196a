"""Training of one model by several processes: the world of ranks, collectives, averaged gradients, lost and new ranks."""
