"""Random steps and random functions for `experiments.torture_engine`, and what must hold for each of them."""
