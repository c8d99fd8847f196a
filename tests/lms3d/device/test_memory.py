"""The limit is a property of the process, so each test that sets one runs in a process of its own."""

import os
import platform
import subprocess
import sys

import pytest

from lms3d.device import memory
from lms3d.errors import InputError

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
FIT = """
import keras, numpy as np
model = keras.Sequential([keras.layers.Input((8, 8, 8, 1)), keras.layers.Conv3D(4, 3, padding="same"), keras.layers.Conv3D(1, 1)])
model.compile("sgd", "mse")
x = np.zeros((2, 8, 8, 8, 1), np.float32)
try:
    model.fit(x, x, batch_size=1, verbose=0, callbacks=[lms3d.LMS(memory_limit="100MiB")])
    print("trained")
except lms3d.InputError as error:
    print(error)
"""


def run_python(code: str, **settings: str) -> subprocess.CompletedProcess:
    """settings: environment variables. Unless they set oneDNN's, the code does."""
    environment = {name: value for name, value in os.environ.items() if name != ONEDNN} | settings
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=environment)


def test_hard_limit_after_the_import_of_tensorflow():
    done = run_python("""
import tensorflow as tf
import lms3d
from lms3d.device import memory
assert lms3d.limit_memory("200MiB") == 200 * 2**20
assert memory.current_limit() == memory.device_memory_bytes() == 200 * 2**20
tf.zeros([2**20])
try:
    tf.zeros([100 * 2**20])
except tf.errors.ResourceExhaustedError:
    print("refused")
""")
    assert done.stdout == "refused\n", done.stderr


def test_the_pool_of_a_limit_beyond_2_gib_is_claimed_whole(commands):
    code = """
import lms3d, tensorflow as tf
lms3d.limit_memory("8GiB")
print(tf.config.experimental.get_memory_info("CPU:0")["peak"] > 8 * 2**30 - 2**23)
"""
    done = commands.run(["-c", code])
    assert done.stdout == "True\n", done.stderr


def test_too_late():
    done = run_python("""
import tensorflow as tf
import lms3d
tf.zeros([1])
try:
    lms3d.limit_memory("200MiB")
except RuntimeError as error:
    print(error)
""")
    assert "too late" in done.stdout, done.stderr


def test_import_leaves_tensorflow_alone():
    done = run_python(
        "import sys, lms3d, lms3d.train, lms3d.doctor; print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    assert done.stdout == "False False\n", done.stderr


def test_less_than_a_mebibyte():
    with pytest.raises(InputError, match="1 MiB"):
        memory.limit_memory("900KiB")


def test_current_limit_reads_tensorflows_own_variables(monkeypatch):
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "300")
    assert memory.current_limit() == 300 * 2**20
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "0")
    assert memory.current_limit() is None


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="TensorFlow has oneDNN's kernels for x86 alone"
)
def test_import_asks_for_the_kernels_of_onednn_whatever_the_processor():
    done = run_python("""
import lms3d
from lms3d.device import memory
print(memory.bytes_in_use("current"))
""")
    assert done.stdout == "0\n", done.stderr


def test_what_the_user_says_of_onednn_stays():
    done = run_python(f"import lms3d, os; print(os.environ['{ONEDNN}'])", **{ONEDNN: "0"})
    assert done.stdout == "0\n", done.stderr


def test_where_nobody_counts_memory_lms_goes_by_predicted_peaks_and_says_so_once():
    """As on processors without AVX-512 if TensorFlow was imported first, and on a Mac."""
    code = FIT.replace("callbacks=[lms3d", "epochs=2, callbacks=[lms := lms3d").replace(
        'print("trained")', "print('trained', lms.report.measured_peak_bytes, lms.report.predicted_peak_bytes > 0)"
    )
    done = run_python("import tensorflow, lms3d" + code, **{ONEDNN: "0"})
    assert done.stdout == "trained None True\n", done.stderr
    assert done.stderr.count("LMS: TensorFlow does not count the memory in use") == 1


def test_with_a_limit_lms_works_with_the_kernels_of_tensorflow():
    done = run_python("import lms3d; lms3d.limit_memory('200MiB')" + FIT, **{ONEDNN: "0"})
    assert done.stdout == "trained\n", done.stderr
