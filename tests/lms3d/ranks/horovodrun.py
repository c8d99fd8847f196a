"""`python tests/lms3d/ranks/horovodrun.py ...` is `horovodrun ...`, but does not ask whether Horovod was built with Gloo: for that
the command imports TensorFlow twice, five seconds of a core for each job. The command itself is started by test_launchers."""

import sys

from horovod.runner import launch

if __name__ == "__main__":
    launch.gloo_built = lambda verbose=False: True
    sys.exit(launch.run_commandline())
