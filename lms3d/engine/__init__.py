"""The large-model-support engine: a traced step is captured, planned and rewritten.

Without TensorFlow: `ir`, `liveness`, `cost`, `plan`, `edit` (vocabulary and arithmetic), `tuning` (constants), `step_model`
(what planners ask about a step), `planners`, and `planning`, `plan_cache`, `sweep` (ways to a plan). With it: `tensorflow`,
`tiers` and `engine`.
"""
