"""What `experiments.report` is made of: what was published, what is run beside it, and the pages."""
