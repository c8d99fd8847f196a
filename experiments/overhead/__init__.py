"""The rooms of `experiments.lms_overhead`.

schedule   which parts, in which order; smallest limits          over_resolution   one limit, rising resolutions: table, CSV, PNG
results    results -> table, CSV                                 promises   results -> what was promised, and whether it was met
figure     results -> PNG
"""
