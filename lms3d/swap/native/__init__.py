"""Swapping beside the step: four TensorFlow operations in C++ over lanes that copy (`src/lanes.h`), and their Python faces.

library   compiles them once per machine, loads them       lanes   a lane as a Python value
src/      lanes.h is the interface; memory_lane.cc and cuda_lane.cc are behind it; ops.cc is above it
"""
