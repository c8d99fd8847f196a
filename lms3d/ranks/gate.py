"""Closes a listening socket to everybody but the ranks: the kernel drops what comes from any other address.

TensorFlow's server listens on all interfaces, asks nobody who they are, and runs whatever graph it is sent. So its socket gets a
packet filter, a program of Linux's socket filters (classic BPF). It reads the IP header, which lies at the negative offset below:

    version 4?  source address in the list?  keep : drop

Connections that are accepted later inherit the filter. Addresses can be forged by somebody on the same wire, and users of these
machines have the same addresses as the ranks.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Sequence

import psutil

SO_ATTACH_FILTER = 26
_IP_HEADER = 0xFFF00000  # SKF_NET_OFF
_SOURCE = _IP_HEADER + 12
_LOAD_BYTE, _LOAD_WORD, _AND, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
_ALL_BYTES = 0xFFFFFFFF


def admit_only(listener: socket.socket, addresses: Sequence[str]) -> None:
    """Lets only these IPv4 addresses reach a listening socket. OSError if the kernel refuses."""
    count = len(addresses)
    program = [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_AND, 0, 0, 0xF0),
        (_IF_EQUAL, 0, count + 1, 0x40),
        (_LOAD_WORD, 0, 0, _SOURCE),
        *((_IF_EQUAL, count - place, 0, _as_number(address)) for place, address in enumerate(addresses)),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, _ALL_BYTES),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(buffer)))


def close_to_strangers(port: int, addresses: Sequence[str]) -> None:
    """Lets only these IPv4 addresses reach the sockets of this process that listen at a port. OSError if the kernel refuses, or if
    nothing listens there."""
    descriptors = [
        connection.fd
        for connection in psutil.Process().net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    if not descriptors:
        raise OSError(f"nothing listens at port {port}")
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as listener:
            admit_only(listener, addresses)


def _as_number(address: str) -> int:
    (number,) = struct.unpack("!I", socket.inet_aton(address))
    return int(number)
