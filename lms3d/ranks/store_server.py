"""The key-value store of `lms3d.launch`: in the launcher's process, on this machine alone, below a secret folder.

The secret reaches the ranks by their environment, which no other user can read. So nobody else reads or writes here. `store.Store`
is the other end.
"""

from __future__ import annotations

import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lms3d.ranks.store import MOST_BYTES

_HERE = "127.0.0.1"


class StoreServer:
    """A store that answers from `serve` to `close`. Who asks earlier waits for the answer."""

    def __init__(self) -> None:
        self._scope, self._values = secrets.token_hex(16), dict[str, bytes]()
        self._server = ThreadingHTTPServer((_HERE, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="store")

    @property
    def place(self) -> str:
        """Where it is: address:port/scope."""
        return f"{_HERE}:{self._server.server_address[1]}/{self._scope}"

    def serve(self) -> None:
        """Answers, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Answers no more."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        """The class that answers one request about these values."""
        scope, values = self._scope, self._values

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                value = values.get(self.path) if self._is_ours() else None
                self._answer(404 if value is None else 200, value or b"")

            def do_PUT(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not self._is_ours() or not length.isdecimal() or int(length) > MOST_BYTES:
                    self._answer(403)
                    return
                values[self.path] = self.rfile.read(int(length))
                self._answer(200)

            def _is_ours(self) -> bool:
                folder = "".join(self.path.split("/")[1:2])  # a stranger's path may have no slash
                return secrets.compare_digest(folder.encode(), scope.encode())

            def _answer(self, code: int, content: bytes = b"") -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Says nothing: ranks ask twenty times a second."""

        return Handler
