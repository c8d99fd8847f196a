"""The large-model-support engine: a traced step is captured, planned and rewritten.

Rooms, in the order in which a step passes through them (only the last four import TensorFlow):
`ir` (vocabulary), `liveness`, `cost`, `simulate`, `plan` (the value), `tflms` and `planner` (two ways to make one),
`edit` (what a plan does to a graph, without TensorFlow), `capture`, `surgery`, `tiers`, `rewrite`.
"""
