"""`python -m lms3d.data.prepare`: checks a data set and builds its training cache ahead of time."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lms3d.common import extras, permissions
from lms3d.data import pseudonyms
from lms3d.data.errors import DataError, in_words
from lms3d.data.prepare_options import parser as _parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks a data set and builds its cache. Returns the exit code."""
    umask = os.umask(permissions.PRIVATE)
    try:
        os.umask(_chosen_umask())
        options = _parser().parse_args(arguments)
        pseudonyms.start(options.anonymous and not options.pseudonyms)
        _run(options)
        return 0
    except (DataError, OSError) as error:
        reported = error if isinstance(error, DataError) else in_words(error)
        if reported is None:
            raise
        print(f"data.prepare: error: {reported}", file=sys.stderr)
        return reported.exit_code
    except KeyboardInterrupt:
        print("data.prepare: interrupted; what is done stays, run again to go on", file=sys.stderr)
        return 130
    finally:
        os.umask(umask)


def _run(options: argparse.Namespace) -> None:
    """DataError if the packages for images are not installed."""
    try:
        from lms3d.data import preparation
    except ModuleNotFoundError as error:
        if (missing := extras.advice(error)) is None:
            raise
        raise DataError(missing) from None
    preparation.run(options)


def _chosen_umask() -> int:
    try:
        return permissions.umask()
    except ValueError as error:
        raise DataError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
