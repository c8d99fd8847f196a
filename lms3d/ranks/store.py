"""The key-value store of a launcher, in which its ranks find each other. It speaks HTTP. That of horovodrun is open to anybody who
reaches its port; that of `lms3d.launch` (`store_server`) to nobody but the ranks.

So nothing in it can be trusted. `messages` executes none of it. As soon as the ranks can communicate in another way, they compare
what each has read (`link.Link.devices_exist`).
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request

from lms3d.errors import InputError

POLL_SECONDS = 0.05
REQUEST_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
MOST_BYTES = 64 << 20


class Store:
    """Bytes by key.

    scope: the folder of all keys. request_seconds: the limit for one request from start to end. patience_seconds: the limit for a
    series of requests that all fail. most_bytes: the limit for one value.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        scope: str = "lms3d",
        request_seconds: float = REQUEST_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._address, self._scope = f"{address}:{port}", scope
        self._request_seconds, self._patience_seconds, self._most_bytes = request_seconds, patience_seconds, most_bytes
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # never by a proxy

    def put(self, key: str, value: bytes) -> None:
        """Stores a value. InputError if the store does not answer."""
        self._ask(key, value)

    def get(self, key: str) -> bytes:
        """Waits for a value and returns it. That may take hours, while rank 0 prepares data; if rank 0 ends, the launcher ends this
        process as well. InputError if the store does not answer."""
        while (value := self._ask(key)) is None:
            time.sleep(POLL_SECONDS)
        return value

    def _ask(self, key: str, value: bytes | None = None) -> bytes | None:
        """The answer to one request, which is repeated if it fails; None if the store has no such key."""
        url = f"http://{self._address}/{self._scope}/{key}"
        begin = time.monotonic()
        while True:
            request = urllib.request.Request(url, data=value, method="GET" if value is None else "PUT")
            try:
                return self._send(request)
            except urllib.error.HTTPError as error:
                if error.code == 404 and value is None:
                    return None
                failure: Exception = error
            except (OSError, http.client.HTTPException) as error:
                failure = error
            if time.monotonic() - begin > self._patience_seconds:
                raise InputError(
                    f"the store of the launcher at {self._address} does not answer ({failure}); see whether it still runs, "
                    "and whether a firewall stands before it, then start again"
                )
            time.sleep(POLL_SECONDS)

    def _send(self, request: urllib.request.Request) -> bytes:
        end = time.monotonic() + self._request_seconds
        content = bytearray()
        with self._open(request, timeout=self._request_seconds) as answer:
            while part := answer.read1(1 << 16):
                content += part
                if len(content) > self._most_bytes:
                    raise InputError(
                        f"the store of the launcher at {self._address} returned more than {self._most_bytes} bytes for one "
                        "message; rank 0 writes less: keep somebody else from its port (a firewall)"
                    )
                if time.monotonic() > end:
                    raise TimeoutError("timed out")
            if answer.length:
                raise http.client.IncompleteRead(bytes(content), answer.length)
        return bytes(content)
