"""The large-model-support engine: a traced step is captured, planned and rewritten.

Without TensorFlow, in the order in which a step passes through them:
`ir` (vocabulary), `liveness`, `cost`, `simulate`, `bfc` (the allocator), `plan` (the value), `tflms` (levels -> plan);
`problem`, `schedule`, `planner`, `emit` (limit -> plan); `edit` (what a plan does to a graph); `decide` (all of it);
`store` (decide, with a memory), `sweep` (decide, at many limits).
With TensorFlow: `capture` (reads), `surgery` (private calls), `tiers`, `rewrite`, `guard`, `measure`, `engine`.
"""
