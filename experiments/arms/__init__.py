"""The arms of `experiments.decisive_comparison`: what they are, how they are trained, what is reported of them."""
