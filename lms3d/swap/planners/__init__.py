"""From a step, a budget and a machine to a plan."""
