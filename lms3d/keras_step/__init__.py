"""LMS inside of Keras: the callback, the runner of rewritten steps, what it measures, and what it reports."""
