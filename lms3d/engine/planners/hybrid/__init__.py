"""The planner that swaps and recomputes: a local search under a memory limit."""
