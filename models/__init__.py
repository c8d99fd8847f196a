"""The networks, in Keras. Importing this package registers its layers, so that `keras.models.load_model` finds them.

To add a network: write a module here whose function has the decorator `@register`, import it below, and add the network's name to
the choices of the task that trains it (`lms3d/tasks/<task>/options.py`, which `--help` reads without Keras).
"""

from lms3d.models import chexnet, isensee2017, unet3d
from lms3d.models.registry import IMAGES, NETWORKS, VOLUMES, build, names, register

__all__ = ["IMAGES", "NETWORKS", "VOLUMES", "build", "chexnet", "isensee2017", "names", "register", "unet3d"]
