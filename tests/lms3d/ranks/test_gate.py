"""Only the ranks reach a socket that is closed to strangers. The addresses of a stranger and of two ranks are of this machine."""

import socket

import pytest

from lms3d.ranks import gate

SECONDS = 0.3


@pytest.fixture
def port():
    """A port at which a server listens on all interfaces, IPv4 and IPv6, like TensorFlow's."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        yield listener.getsockname()[1]


def reaches(source: str, address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as stranger:
        stranger.settimeout(SECONDS)
        stranger.bind((source, 0))
        try:
            stranger.connect((address, port))
        except TimeoutError:
            return False
        return True


def test_only_the_addresses_of_ranks_come_through(port):
    assert reaches("127.0.0.2", "127.0.0.1", port)
    gate.close_to_strangers(port, ["127.0.0.1", "127.0.0.3"])
    assert [reaches(source, "127.0.0.1", port) for source in ("127.0.0.1", "127.0.0.3")] == [True, True]
    assert not reaches("127.0.0.2", "127.0.0.1", port)
    assert not reaches("::1", "::1", port)


def test_no_server_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OSError, match=f"nothing listens at port {port}"):
        gate.close_to_strangers(port, ["127.0.0.1"])
