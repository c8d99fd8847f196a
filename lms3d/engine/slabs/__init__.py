"""Slabs: the tensors of the largest levels as pieces along their first spatial axis, in the traced graph. No TensorFlow here.

    planes       which planes of its inputs a slab needs
    values       tensors of the trace: whole, or as slabs
    sliced_step  the sliced step, op by op, and the order in which it is meant to run
    rules        one per kind of op: slabs in, slabs out
    step         walks a trace, applies the rules, and joins the inputs of ops that have none

`engine.passes.slicing` reads a trace and makes the sliced step.
"""
