"""Swapping beside the step: TensorFlow operations in C++ over lanes that copy (`src/lanes.h`), and their Python faces.

library   compiles them once per machine, and loads them       lanes, files   a lane as a Python value
src/      lanes.h is the interface; memory_lane.cc, cuda_lane.cc and file_lane.cc are behind it; ops.cc is above it
"""
