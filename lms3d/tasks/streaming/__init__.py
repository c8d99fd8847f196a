"""Predictions that are larger than memory: probabilities on disk, and label maps that are written plane by plane.

network --slabs--> DiskMap --planes--> Resized --> Placed --> Mean --> labels, entropy --> NIfTI
"""
