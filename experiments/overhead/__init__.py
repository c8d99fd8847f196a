"""The rooms of `experiments.lms_overhead` and `experiments.emulated_links`; the GPU case study has columns of `results`, too.

schedule   which parts, in which order; smallest limits          over_resolution   one limit, rising resolutions: table
results    results -> tables, CSV                                figure            results -> PNG
"""
