"""`python -m tests.calls ADDRESS` calls functions for the fixture `in_fresh_process`, one after the other, until it hangs up."""

import contextlib
import sys
from multiprocessing.connection import Client


def serve(address: str) -> None:
    """Sends (True, what a function returns) or (False, the error that it raises)."""
    with Client(address) as connection, contextlib.suppress(EOFError):
        while True:
            function, arguments, named = connection.recv()
            try:
                answer = True, function(*arguments, **named)
            except Exception as error:
                answer = False, error
            connection.send(answer)


if __name__ == "__main__":
    serve(sys.argv[1])
