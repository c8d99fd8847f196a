"""Two ranks train, with swapping to a disk, until the test does something to them. Arguments: FOLDER RUN_DIR [SLOW_RANK [SECONDS]].

Each rank appends a line to FOLDER/steps{rank} after every step, and its process number stands in FOLDER/pid{rank}.
SLOW_RANK sleeps in its sixth step. SECONDS after which a rank is late, in place of two minutes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from lms3d import errors
from lms3d.device import startup
from lms3d.ranks import job, lateness

STEP_SECONDS, SLOW_SECONDS = 0.1, 100.0


def main() -> None:
    if sys.argv[4:]:
        lateness.LEAST_SECONDS, lateness.KNOWN = float(sys.argv[4]), 4
    with job.joined() as world:
        startup.start_tensorflow(seed=1, world=world)
        import keras
        import ranks

        from lms3d.engine.cost import Machine
        from lms3d.engine.engine import Engine
        from lms3d.keras_step.callback import LMS

        Engine.machine = property(lambda self: Machine())
        Engine._with_ops = lambda self, graph, machine, function: (graph, machine)
        (ranks.FOLDER / f"pid{world.rank}").write_text(str(os.getpid()))
        steps = (ranks.FOLDER / f"steps{world.rank}").open("a", buffering=1)
        slow = sys.argv[3:4] == [str(world.rank)]

        class Steps(keras.callbacks.Callback):
            count = 0

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.count += 1
                steps.write("step\n")
                time.sleep(SLOW_SECONDS if slow and self.count == 6 else STEP_SECONDS)

        lms = LMS(**{**ranks.SWAP_ALL, "tier": "disk"}, swap_dir=ranks.FOLDER / "swap")
        model = ranks.make_model(world, dropout=0.5)
        history = ranks.train(world, model, Path(sys.argv[2]), Steps(), lms, epochs=4, resume=True)
        lms.close()
        ranks.note(world, values=ranks.values(model), rows=ranks.without_seconds(history.rows))


if __name__ == "__main__":
    sys.exit(errors.run(main))
