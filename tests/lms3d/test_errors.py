import pytest

from lms3d import errors


class Foreign(ValueError):
    exit_code = 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("--x: a\nb"), 2),
        (errors.StorageError("--x: a b"), 2),
        (errors.Diverged("--x: a b"), 2),
        (errors.DoesNotFit("--x: a b", 5), 3),
        (Foreign("--x: a b"), 2),
    ],
)
def test_expected_errors_are_one_line(error, code, capsys):
    def main():
        raise error

    assert errors.run(main) == code
    assert capsys.readouterr().err == "lms3d: error: --x: a b\n"


def test_interrupts(capsys):
    def main():
        raise errors.Interrupted("go on with: x")

    assert errors.run(main) == 130
    assert "go on with: x" in capsys.readouterr().err


def test_defects_keep_their_traceback():
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        errors.run(main)


def test_success():
    assert errors.run(lambda: None) == 0
