"""One timeline for everything: CLOCK_MONOTONIC in nanoseconds.

The kernel can timestamp bytes when they reach the TCP socket (SO_TIMESTAMPNS): on loopback tens of microseconds after the
peer's send, however late they are read. These timestamps are of CLOCK_REALTIME. They are moved onto our timeline by an
offset, which is sampled again during a run: if it changes, the wall clock was stepped, which is reported.

Three things to know about the kernel's timestamps:

- The kernel enables timestamping asynchronously when the first socket of a host requests it. So `prime` enables it before t=0 and
  waits until a timestamp arrives.
- When several segments wait in a socket, the kernel merges them and keeps the latest timestamp.
- Not every platform has them. Without them, bytes are timestamped when they are read.
"""

import socket
import struct
import sys
import time

now = time.monotonic_ns

SO_TIMESTAMPNS = 35
CMSG_SPACE = 32
"""Size of recvmsg's ancillary buffer for one timestamp."""
unpack_stamp = struct.Struct("qq").unpack


def wall_offset() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC in ns: of several samples, the one whose two readings were closest together."""
    best_gap, best = 1 << 62, 0
    for _ in range(9):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_gap:
            best_gap, best = after - before, wall - (before + after) // 2
    return best


def enable_stamps(sock: socket.socket) -> None:
    """Let the kernel timestamp what this socket receives."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def prime() -> socket.socket | None:
    """Enable the kernel's timestamps. Return the socket that keeps them enabled, or None if they are not available."""
    if sys.platform != "linux" or not hasattr(socket.socket, "recvmsg"):
        return None
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender:
        try:
            enable_stamps(receiver)
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
    """The timestamp in recvmsg's ancillary data, CLOCK_REALTIME ns; 0 if there is none."""
    if not ancillary:
        return 0
    seconds, nanoseconds = unpack_stamp(ancillary[0][2])
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
