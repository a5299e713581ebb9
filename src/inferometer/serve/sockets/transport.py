"""A client's socket on the event loop, with kernel receive timestamps and one send() per write; no protocol.

Large parts are received directly into a buffer of the protocol, and sent without a copy. What the kernel does not
accept at once is sent when the socket is writable. `write` never calls back into the protocol: a connection that turns
out to be broken is closed in the next iteration of the loop.

`moved` is when the client last made progress. If it is the client's turn and it does nothing for too long, the
connection is given up; the listener checks this periodically for all connections.

The protocol is an object per connection, made by the listener's `make_protocol(transport)`, with these members:

received(data, arrived)  takes the bytes that the kernel received at `arrived` (monotonic ns)
room, filled(count, arrived)  if `room` is not None, the socket receives directly into it and calls `filled` instead
drained()                the kernel has accepted everything that was written; not called if it did so at once
ended()                  the client has closed the connection, or its sending side; closes the transport, now or later
lost()                   the connection is closed; called once, in `Transport.close`
is_waiting, late()       whether the rest of a request is expected; gives it up if it does not come within the limit
is_idle                  whether no request is in progress; the connection is closed if none comes within the limit
in_flight                whether the server's shutdown has to wait for a request, or for its response to be sent
"""

import contextlib
import socket
import struct
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from inferometer.timing.clock import CMSG_SPACE, now, unpack_stamp

if TYPE_CHECKING:
    from inferometer.serve.sockets.listener import Listener

READ = 64 * 1024
_JOINED = 16 * 1024
"""Pending parts up to this size are merged by copying; larger ones are kept as they are."""
_AT_ONCE = 64
"""Maximum parts per sendmsg()."""
_LINGER_S = 1.0
_RESET = struct.pack("ii", 1, 0)

Data = bytes | bytearray | memoryview


class Transport:
    """A client's socket."""

    __slots__ = (
        "_is_leaving", "_listener", "_out", "_send", "_sock", "closed", "has_ended", "is_reading", "loop", "moved",
        "peer", "protocol", "unsent",
    )  # fmt: skip

    protocol: Any

    def __init__(self, listener: "Listener", sock: socket.socket, peer: str = "") -> None:
        self.closed = False
        self.has_ended = False
        """Whether the client has closed its sending side."""
        self.loop = listener.loop
        self.moved = now()
        """When the client last made progress: it read what was sent, or something expected has arrived. (Not the
        kernel's timestamp, which follows steps of the wall clock.)"""
        self.peer = peer
        """The client's address, for the access log."""
        self.unsent = 0
        """Bytes that the kernel has not accepted yet."""
        self._sock, self._send = sock, sock.send
        self._listener = listener
        self._out: deque[bytearray | memoryview] = deque()
        self._is_leaving, self.is_reading = False, True
        self.loop.add_reader(sock, self._readable)

    @property
    def is_leaving(self) -> bool:
        """Whether everything is sent, our side is closed, and the client has not closed yet."""
        return self._is_leaving and not self.unsent and not self.closed

    # --- in ----------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        protocol = self.protocol
        room = protocol.room
        try:
            if room is None:
                data, ancillary, _, _ = self._sock.recvmsg(READ, CMSG_SPACE)
                count = len(data)
            else:
                count, ancillary, _, _ = self._sock.recvmsg_into([room], CMSG_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not count:
            self._end()
        elif self._is_leaving:
            return  # everything has been said; further input is ignored
        elif room is None:
            protocol.received(data, self._arrived(ancillary))
        else:
            protocol.filled(count, self._arrived(ancillary))

    def _arrived(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        if not ancillary:
            return now()
        seconds, nanoseconds = unpack_stamp(ancillary[0][2])
        return int(seconds * 1_000_000_000 + nanoseconds - self._listener.wall_offset)

    def pause_reading(self) -> None:
        self.is_reading = False
        self.loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        if not (self.is_reading or self.closed or self.has_ended):
            self.is_reading = True
            self.loop.add_reader(self._sock, self._readable)

    def _end(self) -> None:
        self.has_ended = True
        self.pause_reading()
        if not self._is_leaving:
            self.protocol.ended()
        elif not self.unsent:
            self.close()

    def close_if_broken(self) -> None:
        """Close if the client has reset the connection. uvloop reports a reset only once: if there was still something
        to read by then, it does not report that the rest is an error."""
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close()

    # --- out ---------------------------------------------------------------------------------------------------------

    def write(self, data: Data, *more: Data) -> None:
        """Send the parts in order. Large ones are kept without a copy: do not modify them afterwards."""
        if more or self._out:
            self._write_all((data, *more))
            return
        try:
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.loop.call_soon(self.close)
            return
        if sent < len(data) and not self.closed:
            self.moved = now()
            self._keep(memoryview(data)[sent:])
            self.loop.add_writer(self._sock, self._writable)

    def _write_all(self, parts: tuple[Data, ...]) -> None:
        if self.closed:
            return
        is_first = not self._out
        if is_first:
            self.moved = now()
        for part in parts:
            self._keep(memoryview(part))
        if is_first and self._send_some() and self._out:
            self.loop.add_writer(self._sock, self._writable)

    def _keep(self, data: memoryview) -> None:
        if not len(data):
            return
        self.unsent += data.nbytes
        if data.nbytes > _JOINED:
            self._out.append(data)
        elif self._out and isinstance(self._out[-1], bytearray) and len(self._out[-1]) < 4 * _JOINED:
            self._out[-1] += data
        else:
            self._out.append(bytearray(data))

    def _send_some(self) -> bool:
        """Send what the kernel accepts; return False if the connection is broken."""
        try:
            sent = self._sock.sendmsg(list(islice(self._out, _AT_ONCE)))
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            self.loop.call_soon(self.close)
            self._out.clear()
            return False
        self.unsent -= sent
        self.moved = now()
        out = self._out
        while sent:
            first = out[0]
            if len(first) > sent:
                if isinstance(first, bytearray):
                    del first[:sent]
                else:
                    out[0] = first[sent:]
                break
            sent -= len(first)
            out.popleft()
        return True

    def _writable(self) -> None:
        if not self._send_some():
            self.loop.remove_writer(self._sock)
        elif not self._out:
            self.loop.remove_writer(self._sock)
            self._drained()

    def _drained(self) -> None:
        if self._is_leaving:
            self._shut_down()
        else:
            self.protocol.drained()

    # --- patience ----------------------------------------------------------------------------------------------------

    def give_up_if_late(self, idle: int, stalled: int, at: int) -> None:
        """Give up if it is the client's turn and it made no progress for this many ns as of `at`. Computing is the
        server's turn."""
        silent = at - self.moved
        if self.unsent:
            if silent > stalled:
                self.reset()  # so that the kernel drops its copy of what was sent
        elif self._is_leaving:
            return
        elif self.protocol.is_waiting:
            if silent > stalled:
                self.protocol.late()
        elif self.protocol.is_idle and silent > idle:
            self.close()

    # --- the end -----------------------------------------------------------------------------------------------------

    def linger(self) -> None:
        """Close our side when everything is sent, and the rest when the client does or after a second: closing with
        unread bytes would discard what the client has not read yet. Further input is ignored."""
        self._is_leaving = True
        if not self.unsent:
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self.loop.call_later(0 if self.has_ended else _LINGER_S, self.close)

    def close(self) -> None:
        """Close at once in an orderly way, even if not everything is sent."""
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self._sock)
        self.loop.remove_writer(self._sock)
        self._sock.close()
        self._out.clear()
        self._listener.transports.discard(self)
        self.protocol.lost()
        del self.protocol  # break the reference cycle

    def reset(self) -> None:
        """Close with RST, discarding unsent data."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close()
