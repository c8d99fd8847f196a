"""The compiled block passes over the volume as seldom as is possible."""

from __future__ import annotations

from lms3d.experiments import passes


def test_the_compiled_block_takes_the_least(capsys):
    assert passes.main([]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    numbers = {(told.strip("| "), name): [int(n.strip(" |")) for n in rest] for told, name, *rest in rows}
    for told in {told for told, _ in numbers}:
        assert numbers[told, "compiled operations"] == numbers[told, "the least"]
        plain = numbers[told, "TensorFlow's own"]
        assert all(most > least for most, least in zip(plain, numbers[told, "the least"], strict=True))


def test_an_option_is_one_line(capsys):
    assert passes.main(["--all"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
