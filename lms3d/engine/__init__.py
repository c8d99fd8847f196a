"""The large-model-support engine: a traced step is captured, planned and rewritten.

Without TensorFlow: `ir`, `liveness`, `ledger`, `order`, `cost`, `simulate`, `plan`, `edit` (vocabulary and arithmetic),
`tuning` (every constant), `planners`, and `planning`, `plan_cache`, `sweep` (ways to a plan). With it: `tensorflow`, `tiers`
and `engine`.
"""
