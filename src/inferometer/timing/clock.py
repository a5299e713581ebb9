"""One timeline for everything: CLOCK_MONOTONIC in nanoseconds.

The kernel can stamp bytes as they reach the TCP socket (SO_TIMESTAMPNS), tens of microseconds after the peer's send on loopback,
however late we read them. Its stamps are of CLOCK_REALTIME, so they are moved onto our timeline by an offset, which is
sampled again during a run: a change of it is a step of the wall clock, and is reported.

Three things to know about these stamps. The kernel switches stamping on asynchronously at the first request for it in a
host, so `prime` asks before t=0 and waits until one came. When several segments wait in a socket the kernel merges them
and keeps the latest stamp. And not every platform has them: then stamps are taken when the bytes are read.
"""

import socket
import struct
import sys
import time

now = time.monotonic_ns

SO_TIMESTAMPNS = 35
CMSG_SPACE = 32
"""Room for one stamp in recvmsg's ancillary buffer."""
unpack_stamp = struct.Struct("qq").unpack


def wall_offset() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC in ns: the sample, of several, whose two readings lay closest together."""
    best_gap, best = 1 << 62, 0
    for _ in range(9):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_gap:
            best_gap, best = after - before, wall - (before + after) // 2
    return best


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel stamp what this socket receives."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def prime() -> socket.socket | None:
    """Switch the kernel's stamping on and return the socket that keeps it on, or None where there is no stamping."""
    if sys.platform != "linux" or not hasattr(socket.socket, "recvmsg"):
        return None
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender:
        try:
            ask_for_stamps(receiver)
        except OSError:
            receiver.close()
            return None
        for _ in range(200):
            sender.send(b"?")
            if stamp_of(receiver.recvmsg(1, CMSG_SPACE)[1]):
                return receiver
            time.sleep(0.001)
    receiver.close()
    return None


def stamp_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The stamp in recvmsg's ancillary data, CLOCK_REALTIME ns; 0 where there is none."""
    if not ancillary:
        return 0
    seconds, nanoseconds = unpack_stamp(ancillary[0][2])
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
