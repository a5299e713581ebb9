"""The round-trip time of a TCP connection, as the kernel measures it (TCP_INFO on Linux).

Only the minimum is of use. The smoothed value counts until a segment is acknowledged, and the acknowledgement of a request usually
travels with the response: on an idle connection to a server that takes 10 ms it soon reads 10 ms. The minimum includes the handshake,
which the peer's kernel acknowledges at once.
"""

import socket
import struct
import sys

_MIN_RTT = 148
"""Offset of tcpi_min_rtt (microseconds; Linux 4.6 or later) in struct tcp_info."""
_SIZE = _MIN_RTT + 4
_NONE = 0xFFFF_FFFF
_unpack = struct.Struct("=I").unpack_from


def min_rtt(sock: socket.socket) -> int:
    """The shortest round trip on a connection so far in ns; -1 if the kernel does not say."""
    if sys.platform != "linux":
        return -1
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
        return -1
    if len(info) < _SIZE:
        return -1
    microseconds: int = _unpack(info, _MIN_RTT)[0]
    return -1 if microseconds == _NONE else 1000 * microseconds
