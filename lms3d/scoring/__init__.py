"""Losses, metrics, scores and tables."""
