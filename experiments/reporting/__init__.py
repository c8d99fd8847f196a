"""The rooms of `experiments.report`: published tables, the commands run beside them, and the pages."""
