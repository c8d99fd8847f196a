"""`experiments.prediction_memory` at toy size, in a process of its own: its limit is fixed when TensorFlow starts."""

import re
import subprocess
import sys


def test_it_prints_time_and_memory():
    words = ["--side", "32", "--outputs", "2", "--native", "40", "--memory-limit", "200MiB"]
    done = subprocess.run(
        [sys.executable, "-m", "lms3d.experiments.prediction_memory", *words], capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "32x32x32, 2 outputs, limit 200 MiB" in done.stdout
    assert re.search(r"at most [\d.]+ .iB of its own, and [\d.]+ .iB with pages of files", done.stdout)
    assert "probabilities as a whole: 256 KiB" in done.stdout
