"""`python -m tests.small MODULE ...` is `python -m MODULE ...` with small networks under the names of the real ones, and figures of
one pixel (see `tests.one_pixel`).

For tests of what commands do with a network, whichever it is. What starts further processes gives them the real networks.
"""

import os
import runpy
import sys

from lms3d import console

with console.quiet_native_log():  # it imports TensorFlow
    import tests.small_networks  # noqa: F401
    from tests import one_pixel

if __name__ == "__main__":
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    if one_pixel.VARIABLE not in os.environ:
        one_pixel.Figure.savefig = one_pixel.save
    sys.modules.pop(module, None)  # runpy warns of a module that is there already
    runpy.run_module(module, run_name="__main__", alter_sys=True)
