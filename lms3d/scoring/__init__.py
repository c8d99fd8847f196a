"""Losses and metrics for training, scores of predictions, and their tables, pages and figures."""
