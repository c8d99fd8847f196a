"""With one of the waits taken out of the native library, a slow link gives other bits: so the tests of equal bits can see it.

One build of the lane leaves out any of them, and takes the place of the library's own. Each runs in a process of its own, whose
pool of memory hands out freed memory at once.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from lms3d.engine.native.library import SOURCES, find_compiler
from lms3d.errors import InputError

WAITS = ("HOLD_DOES_NOT_WAIT", "ARRIVE_DOES_NOT_WAIT", "FETCH_DOES_NOT_WAIT_FOR_OUT")
"""A fourth, of the fetch for the device, is none on a processor: see `tests/lms3d/engine/native/test_lanes.py`."""


def is_wrong(lane: str, missing: str) -> bool:
    """Whether one of twenty steps has other bits. lane: a library whose functions go before others' of the same name."""
    os.environ["LMS3D_MUTATION"] = missing
    ctypes.CDLL(lane, mode=ctypes.RTLD_GLOBAL)
    from lms3d.device import memory

    memory.limit_memory("64MiB")
    import numpy as np
    import tensorflow as tf

    from lms3d.engine.tensorflow import functions
    from tests.lms3d.engine import traced
    from tests.lms3d.engine.tiers.slow import slow_tier

    spec = tf.TensorSpec((512, 32))
    for function in (traced.u_net, traced.fork):
        tier, batches = slow_tier(100e6, 2e-3)(), [traced.batch(seed, spec) for seed in range(10)]
        without = functions.make_function(functions.trace(function, spec))
        expected = [without(one).numpy() for one in batches]
        made = traced.by_tflms(function, tier, spec)
        assert made.change.swap_outs
        pairs = zip(batches, expected, strict=True)
        wrong = any(not np.array_equal(made.function(one).numpy(), same) for one, same in pairs)
        del made
        tier.lane.settle()
        tier.close()
        if wrong:
            return True
    return False


@pytest.fixture(scope="module")
def lane(tmp_path_factory) -> Path:
    """The lane through memory, built so that a variable names the wait that it leaves out (see `src/mutations.h`)."""
    try:
        compiler = find_compiler()
    except InputError as error:
        pytest.skip(str(error))
    made = tmp_path_factory.mktemp("mutable") / "lane.so"
    how = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-DLMS3D_MUTABLE"]
    subprocess.run([compiler, *how, SOURCES / "memory_lane.cc", "-o", made], check=True)
    return made


@pytest.mark.parametrize("missing", ["", *WAITS])
def test_other_bits(missing, lane, commands):
    code = f"import sys; from {__name__} import is_wrong; print(is_wrong(*sys.argv[1:]))"
    done = commands.run(["-c", code, lane, missing])
    assert done.stdout == f"{bool(missing)}\n", done.stderr
