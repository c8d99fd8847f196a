"""TFLMS's planner: its parameters, its rules (`build`), and its search for parameters that fit a limit (`autotune`)."""

from lms3d.engine.planners.tflms.parameters import Parameters
from lms3d.engine.planners.tflms.planner import autotune
from lms3d.engine.planners.tflms.rules import build

__all__ = ["Parameters", "autotune", "build"]
