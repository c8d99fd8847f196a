from types import SimpleNamespace

import numpy as np

from lms3d.errors import DoesNotFit
from lms3d.tasks.brats import task


def test_a_finished_run_does_not_fail_over_a_picture(tmp_path, monkeypatch, capsys):
    def no_room(*_):
        raise DoesNotFit("inference at 32^3 needs more memory than there is; raise --memory-limit")

    monkeypatch.setattr(task, "_segment", no_room)
    cache = SimpleNamespace(image=lambda case: np.zeros((2, 2, 2, 4)), truth=lambda case: np.zeros((2, 2, 2)))
    material = SimpleNamespace(cache=cache, split=SimpleNamespace(validation=["case"]))
    task.TASK.finish(tmp_path, None, None, material, None)
    assert "slice.png is left out: inference at 32^3" in "".join(capsys.readouterr())
