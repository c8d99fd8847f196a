"""Large Model Support for TensorFlow: train networks whose activations do not fit into device memory.

    import lms3d

    lms3d.limit_memory("6GiB")                            # optional: a hard limit, before TensorFlow allocates
    lms3d.estimate(model, dataset, memory_limit="6GiB")   # optional: will it fit, and at what cost?
    model.fit(dataset, callbacks=[lms3d.LMS()])

Names are loaded on first use, so that `import lms3d` is cheap and does not import TensorFlow. It only asks TensorFlow for
oneDNN's kernels: import lms3d before TensorFlow. Afterwards `keras.models.load_model` finds the layers of lms3d.
"""

from __future__ import annotations

import os
import platform
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lms3d import after_keras
from lms3d.common import program

if TYPE_CHECKING:
    from lms3d.device.memory import limit_memory
    from lms3d.errors import DoesNotFit, InputError, StorageError
    from lms3d.keras_step.callback import LMS
    from lms3d.keras_step.estimate import estimate, plan_step

__version__ = program.VERSION
__all__ = ["LMS", "DoesNotFit", "InputError", "StorageError", "estimate", "limit_memory", "plan_step"]

_HOME = {
    "LMS": "lms3d.keras_step.callback",
    "DoesNotFit": "lms3d.errors",
    "InputError": "lms3d.errors",
    "StorageError": "lms3d.errors",
    "estimate": "lms3d.keras_step.estimate",
    "limit_memory": "lms3d.device.memory",
    "plan_step": "lms3d.keras_step.estimate",
}

# By default TensorFlow uses oneDNN's kernels only on a processor with AVX-512 VNNI. With its own kernels the gradients of a 3D
# convolution take many times as long (docs/limits.md has a figure), and TensorFlow does not count the memory in use.
# It reads the variable once, when it is imported. A value that the user has set stays.
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# In a checkout `data`, `models` and `experiments` lie beside this folder, and links in it lead there. Git makes no links on some
# systems, and some copies lose them.
if not os.path.isdir(os.path.join(__path__[0], "data")):
    __path__.append(os.path.dirname(__path__[0]))
after_keras.register()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lms3d' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
