import errno

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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_nobody_has_put_into_words_is_one_line(number, capsys):
    def main():
        raise OSError(number, "No luck", "/disk/file")

    assert errors.run(main) == 2
    assert capsys.readouterr().err == "lms3d: error: /disk/file: No luck; free some space there, or mend the disk\n"


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EFBIG, "ulimit -f"), (errno.EMFILE, "ulimit -n"), (errno.ENFILE, "file-max")]
)
def test_limits_of_files_are_one_line(number, advice, capsys):
    def main():
        raise OSError(number, "Too much")

    assert errors.run(main) == 2
    told = capsys.readouterr().err
    assert told.startswith("lms3d: error: a file: Too much; raise the limit of this ")
    assert advice in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EACCES, "owner"), (errno.EPERM, "owner"), (errno.ENAMETOOLONG, "shorter"), (errno.ELOOP, "links")],
)
def test_what_the_user_named_is_one_line(number, advice, capsys):
    def main(*where):
        raise OSError(number, "No entry", *where)

    assert errors.run(lambda: main("/their/run")) == 2
    told = capsys.readouterr().err
    assert told.startswith("lms3d: error: /their/run: No entry; ")
    assert advice in told
    with pytest.raises(OSError, match="No entry"):  # of nothing that has a name: a defect
        errors.run(main)


def test_a_name_that_is_too_long(capsys):
    from lms3d import predict, train

    for command in (lambda: train.main(["--output", "x" * 300]), lambda: predict.main(["y" * 300])):
        assert command() == 2
        told = capsys.readouterr().err
        assert "File name too long; choose a shorter one" in told
        assert told.count("\n") == 1


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
