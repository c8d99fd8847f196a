"""Volumes of any kind: files, grids, preprocessing, cache, and batches for training."""
