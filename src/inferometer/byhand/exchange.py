"""The request itself: bytes as a run would send them, on a connection of their own, with the instants of its parts.

Where engine/ask.py gives an answer when it is whole, here `heard` is told as it comes. The codecs and the stamps are those of
the engine. What keeps an answer from coming is a UserError; an answer that is a failure is returned.
"""

from collections.abc import Callable, Sequence

import msgspec

from inferometer.engine import ask
from inferometer.engine.ask import Place
from inferometer.errors import UserError
from inferometer.timing import clock
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Event, Fail, StreamAnswer
from inferometer.units import format_seconds
from inferometer.wire.http2 import Client, Data, Headers, Http2Error, Reset, code_name
from inferometer.wire.target import Target

Heard = Callable[[int, Sequence[Event]], None]
"""What bytes that came at an instant (CLOCK_MONOTONIC ns) mean."""

_READ = 262_144
_SETTINGS = 4


class Instants(msgspec.Struct):
    """CLOCK_MONOTONIC ns, each not before the one above it."""

    connect_from: int = 0
    connected: int = 0
    """TLS included."""
    written: int = 0
    """The last byte of the request was given to the kernel."""
    first_byte: int = 0
    """Of the answer; gRPC: not of what a connection begins with."""
    done: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    tls: bool = False
    by_kernel: bool = False
    """The kernel stamped what came in; else it is stamped when it was read."""

    @property
    def sent(self) -> int:
        """The request starts when the connection stands."""
        return self.connected


class _Line:
    """A connected socket."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._primed = clock.prime() if not place.target.tls else None
        self._offset = clock.wall_offset()
        self.instants = Instants(tls=place.target.tls, connect_from=now())
        self._sock, _ = ask.connect(place)
        self.instants.connected = now()
        self._sock.settimeout(place.timeout or None)
        if self._primed is not None:
            clock.ask_for_stamps(self._sock)

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        if self._primed is not None:
            self._primed.close()

    def write(self, data: bytes) -> None:
        self.instants.bytes_out += len(data)
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise self._late("took no more bytes") from None
        except OSError:
            return  # the server has closed: what it said before that is still to be read

    def read(self) -> tuple[bytes, int]:
        """The next bytes and when they arrived; none: the server closed."""
        try:
            if self._primed is None:
                data, stamp = self._sock.recv(_READ), 0
            else:
                data, ancillary, _, _ = self._sock.recvmsg(_READ, clock.CMSG_SPACE)
                stamp = clock.stamp_of(ancillary)
        except TimeoutError:
            raise self._late("did not answer" if not self.instants.first_byte else "sent nothing more") from None
        except OSError:
            return b"", now()
        self.instants.bytes_in += len(data)
        self.instants.by_kernel = self.instants.by_kernel or stamp > 0
        at = now()
        return data, min(at, stamp - self._offset) if stamp else at

    def ended(self, at: int) -> Instants:
        """The instants, in order: a server may answer before it has read all, and stamps are older than our clock's reading."""
        found = self.instants
        found.first_byte = max(found.first_byte or at, found.connected)
        found.written = min(found.written or found.first_byte, found.first_byte)
        found.done = max(at, found.first_byte)
        return found

    def _late(self, what: str) -> UserError:
        waited = format_seconds(self._place.timeout)
        return UserError(f"{self._place.target.url}: the server {what} within {waited}", "check it, or raise --timeout")


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


def over_http(place: Place, request: bytes, decoder: Decoder, heard: Heard) -> tuple[Instants, Fail | None]:
    """Send a whole request and feed the decoder until it says how the answer ended."""
    with _Line(place) as line:
        line.write(request)
        line.instants.written = now()
        start, last = b"", 0
        while True:
            data, at = line.read()
            start = start or data
            if data:
                last = at
                line.instants.first_byte = line.instants.first_byte or at
            events = decoder.feed(data) if data else decoder.eof()
            heard(at, events)
            ending = next((event for event in events if isinstance(event, End | Fail)), None)
            if ending is None:
                continue
            if isinstance(ending, Fail) and _is_http2(start):
                raise _speaks_http2(place.target)
            return line.ended(last or at), ending if isinstance(ending, Fail) else None


def _is_http2(start: bytes) -> bool:
    """It begins with a SETTINGS frame of stream 0."""
    return len(start) >= 9 and start[3] == _SETTINGS and start[5:9] == bytes(4)


def _speaks_http2(target: Target) -> UserError:
    return UserError(
        f"{target.url}: speaks HTTP/2 (gRPC?), not HTTP/1.1",
        f"write grpc{'s' * target.tls}://{target.authority}, or give the server's HTTP port",
    )


# --- gRPC ------------------------------------------------------------------------------------------------------------


def over_grpc(
    place: Place, block: bytes, body: bytes, answer: StreamAnswer, heard: Heard
) -> tuple[Instants, Fail | None]:
    """Make one call and tell the answer's frames until it says how it ended."""
    client = Client()
    with _Line(place) as line:
        client.start()
        stream = client.request(block, body)
        ending: End | Fail | None = None
        while ending is None:
            _flush(client, line)
            data, at = line.read()
            for event in _frames(place.target, client, data, stream):
                line.instants.first_byte = line.instants.first_byte or at
                said = _meaning(event, answer)
                heard(at, said)
                ending = ending or next((one for one in said if isinstance(one, End | Fail)), None)
        _flush(client, line)
        return line.ended(at), ending if isinstance(ending, Fail) else None


def _flush(client: Client, line: _Line) -> None:
    while data := client.take():
        line.write(data)
    if not line.instants.written and not client.blocked:
        line.instants.written = now()


def _frames(target: Target, client: Client, data: bytes, stream: int) -> list[Headers | Data | Reset]:
    """The events of our stream in `data`."""
    http = f"http{'s' * target.tls}://{target.authority}"
    if not data:
        known = "" if client.settings_received else ": is it a gRPC server?"
        raise UserError(
            f"{target.url}: the server closed the connection without an answer{known}",
            f"check the port, or write {http} for an HTTP server",
        )
    try:
        events = client.feed(data)
    except Http2Error as error:
        raise UserError(
            f"{target.url}: {error.message}", f"check the port, or write {http} for an HTTP server"
        ) from None
    return [event for event in events if isinstance(event, Headers | Data | Reset) and event.stream == stream]


def _meaning(event: Headers | Data | Reset, answer: StreamAnswer) -> Sequence[Event]:
    if isinstance(event, Reset):
        return (Fail("stream_reset", event.message or code_name(event.code)),)
    if isinstance(event, Headers):
        return answer.headers(event.headers, event.end)
    return answer.data(event.data, event.end)
