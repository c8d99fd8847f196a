"""The benchmark of the first step: who takes turns with whom, what counts, and one real run at toy size."""

import re
from functools import partial

import pytest

from lms3d.engine.native.library import GIVEN, compiled
from lms3d.experiments import first_step
from lms3d.experiments.harness import child as process
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import Part

WAYS = [Part(method=m, model="unet3d", resolution=16, warm_up=0, steps=1) for m in (methods.KERAS, methods.LMS)]


class Imitation:
    """Keras takes four seconds, LMS three; the first process of each a hundred more. Each leaves a plan behind."""

    begun: list

    def __init__(self, part, log, patience_seconds, environment):
        self.seconds = {methods.KERAS: 4.0, methods.LMS: 3.0}[part.method] + 100 * (self.begun.count(part) == 0)
        plans = log.parent / "cache" / "plans"
        assert environment == {"LMS3D_CACHE": str(plans.parent)}
        assert not plans.exists()
        plans.mkdir(parents=True)
        self.begun.append(part)

    def step(self):
        return {"seconds": self.seconds}

    def kill(self):
        self.begun.append("end")


def test_ways_take_turns_and_the_first_of_each_does_not_count(tmp_path):
    kind = type("Kind", (Imitation,), {"begun": []})
    found = first_step.first_steps(WAYS, 2, tmp_path, kind)
    assert kind.begun == [WAYS[0], "end", WAYS[1], "end"] * 3  # one process at a time
    assert found == {WAYS[0]: [4.0, 4.0], WAYS[1]: [3.0, 3.0]}


def test_the_ratio_is_of_medians():
    options = first_step._parser().parse_args(["--resolution", "16", "--repeats", "3"])
    text = first_step.report({WAYS[0]: [4.0, 4.4, 40.0], WAYS[1]: [1.0, 3.3, 3.4]}, options, "the command")
    assert "| Keras fit as it is | 4.4 s | 4.0 s to 40.0 s | 1.00 x |" in text
    assert "| LMS | 3.3 s | 1.0 s to 3.4 s | 0.75 x |" in text
    assert "3 fresh processes each" in text
    assert "Made by `the command`." in text


def test_a_limit_that_is_too_small_is_one_line(tmp_path, capsys, monkeypatch):
    def refuse(*_):
        raise process.ChildFailed("does not fit", "the smallest limit that would do is 280 MiB")

    turns = first_step.first_steps
    monkeypatch.setattr(first_step, "first_steps", lambda ways, repeats, folder: turns(ways, repeats, folder, refuse))
    assert first_step.main(["--memory-limit", "100MiB"]) == 3
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "280 MiB; raise --memory-limit" in told


@pytest.mark.slow
def test_real_processes(monkeypatch, capsys):
    monkeypatch.setattr(first_step, "UNCOUNTED", 0)
    monkeypatch.setattr(
        first_step, "Part", partial(Part, filters=(4, 8))
    )  # the other levels are traced in the same way
    monkeypatch.setenv(GIVEN, str(compiled()))  # it would else be compiled in the cache that the processes get
    assert (
        first_step.main(["--model", "unet3d", "--resolution", "16", "--memory-limit", "400MiB", "--repeats", "1"]) == 0
    )
    table = capsys.readouterr().out
    assert re.search(r"\| Keras fit as it is \| [\d.]+ m?s \|.*\| 1\.00 x \|", table)
    assert re.search(r"\| LMS in 400 MiB \| [\d.]+ m?s \|.*\| [\d.]+ x \|", table)
