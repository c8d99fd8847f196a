"""The arms of `experiments.decisive_comparison`: their options, their training, their report."""
