"""The rooms of `experiments.lms_overhead`.

parts      what one part measures and what came of it: values       process    starts a child, talks with it
bench      parts -> results, saved, resumed, within a time limit    child      the child's side of the protocol
schedule   which parts, in which order; smallest limits             steps_tensorflow, steps_torch, variants, network_torch
over_resolution   one limit, rising resolutions: table, CSV, PNG
results    results -> table, CSV, promises                          figure     results -> PNG
"""
