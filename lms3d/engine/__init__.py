"""The large-model-support engine: a traced step is normalised, captured, planned and rewritten.

Without TensorFlow: `ir`, `liveness`, `cost`, `plan`, `edit` (vocabulary and arithmetic), `tuning` (constants), `slabs` (rules and
choice), `step_model` (what planners ask about a step), `planners`, `planning`, `plan_cache`, `sweep` (ways to a plan), and
`choosing` (whole or in slabs). With it: `tensorflow` (capture and measurements), `passes` (all edits of a graph), `native` and
`tiers` (where swapped tensors go), and `engine`, which puts them together.
"""
