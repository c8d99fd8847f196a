"""Networks, Keras only. Importing this package registers its layers, so that `keras.models.load_model` finds them.

A new network is a module here whose function carries `@register`, its name below, and its name in the choices of the
task that trains it (`lms3d/tasks/<task>/options.py`, which `--help` reads without Keras).
"""

from models import chexnet, isensee2017, unet3d
from models.registry import IMAGES, NETWORKS, VOLUMES, build, names, register

__all__ = ["IMAGES", "NETWORKS", "VOLUMES", "build", "chexnet", "isensee2017", "names", "register", "unet3d"]
