"""Records the loopback traffic of a server's port, and computes from it the time that each request took.

    with recording(port) as packets:
        ...                            # run a client; the list is filled when the block ends
    exchanges = EXCHANGES["http"](packets)

The kernel timestamps each packet when it is sent, and copies it into a ring (AF_PACKET, TPACKET_V3) that is large enough for the
whole run and is read afterwards. So no process wakes up to record while the client runs; the only cost is the copy. A dropped
packet or a gap in a stream is an error. A request takes from its first byte to the last byte of its response. Needs Linux and
permission for raw sockets (root, or CAP_NET_RAW).
"""

import bisect
import contextlib
import ctypes
import mmap
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import hpack

# From <linux/if_packet.h> and <linux/filter.h>; the socket module does not define them.
_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _TPACKET_V3 = 263, 5, 6, 10, 2
_ETH_P_ALL, _OUTGOING, _SO_ATTACH_FILTER = 3, 4, 26
_BLOCK, _BLOCKS, _RETIRE_MS = 1 << 18, 1024, 200
"""256 MiB: about 40 s of what a server on one core can send. A block is handed over after 200 ms even if it is not full."""
_BLOCK_HEAD = struct.Struct("8xIII")  # status, packets, offset of the first
_PACKET_HEAD = struct.Struct(
    "IIII8xHH"
)  # offset of the next, s, ns, bytes; offsets of the link's and the network's header
_SYN = 0x02


class Packet(NamedTuple):
    at: int
    """Wall clock, ns: when the kernel sent it."""
    client: int
    """The client's port."""
    to_server: bool
    opens: bool
    """It opens a connection (SYN)."""
    seq: int
    data: bytes


class Exchange(NamedTuple):
    """Start of a request and end of its response (wall clock, ns)."""

    begin: int
    end: int


Packets = Sequence[Packet]


def forbidden() -> str:
    """Why recording is not possible here; empty if it is."""
    try:
        _listener().close()
    except AttributeError:
        return "AF_PACKET sockets need Linux"
    except OSError as error:
        return f"{error.strerror}: raw sockets need root, or CAP_NET_RAW"
    return ""


@contextlib.contextmanager
def recording(port: int) -> Iterator[list[Packet]]:
    """Record what is sent to and from this port on the loopback interface. The list is filled when the block ends."""
    packets: list[Packet] = []
    with _listener() as listener:
        program = _Filter(port)
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program.pointer)
        listener.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V3)
        frames = _BLOCK * _BLOCKS // 2048
        listener.setsockopt(_SOL_PACKET, _RX_RING, struct.pack("7I", _BLOCK, _BLOCKS, 2048, frames, _RETIRE_MS, 0, 0))
        with mmap.mmap(listener.fileno(), _BLOCK * _BLOCKS) as ring:
            listener.bind(("lo", _ETH_P_ALL))
            yield packets
            seen, dropped, _ = struct.unpack("3I", listener.getsockopt(_SOL_PACKET, _STATISTICS, 12))
            time.sleep(2 * _RETIRE_MS / 1e3)  # until the last block is handed over
            packets += _read(ring, port)
    if dropped or len(packets) < seen:
        raise RuntimeError(f"{dropped} of {seen} packets were dropped, {len(packets)} were recorded: use a shorter run")


def _listener() -> socket.socket:
    """A socket that receives nothing until it is bound. SOCK_DGRAM: packets begin with the IP header."""
    return socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)


class _Filter:
    """A classic BPF program that accepts TCP over IPv4 from or to this port. The loopback interface shows each packet twice,
    when it is sent and when it is received; only the first is accepted."""

    def __init__(self, port: int) -> None:
        load_kind, load_byte, load_half, load_header, jump, mask, accept = 0x30, 0x30, 0x48, 0xB1, 0x15, 0x54, 0x06
        steps = (  # operation, steps to skip if true, if false, operand
            (load_kind, 0, 0, 0xFFFFF000 + 4),  # SKF_AD_OFF + SKF_AD_PKTTYPE
            (jump, 0, 9, _OUTGOING),
            (load_byte, 0, 0, 0),
            (mask, 0, 0, 0xF0),
            (jump, 0, 6, 0x40),  # IPv4
            (load_byte, 0, 0, 9),
            (jump, 0, 4, socket.IPPROTO_TCP),
            (load_header, 0, 0, 0),  # X: the IP header's length
            (load_half, 0, 0, 0),
            (jump, 2, 0, port),
            (load_half, 0, 0, 2),
            (jump, 0, 1, port),
            (accept, 0, 0, 0x40000),
            (accept, 0, 0, 0),
        )
        self._steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        self.pointer = struct.pack("HL", len(steps), ctypes.addressof(self._steps))
        """Valid as long as this object exists."""


def _read(ring: mmap.mmap, port: int) -> Iterator[Packet]:
    for block in range(0, _BLOCK * _BLOCKS, _BLOCK):
        status, count, first = _BLOCK_HEAD.unpack_from(ring, block)
        if not status & 1:  # it still belongs to the kernel, as do all that follow
            return
        at = block + first
        for _ in range(count):
            onward, seconds, nanoseconds, length, _, network = _PACKET_HEAD.unpack_from(ring, at)
            yield _packet(seconds * 1_000_000_000 + nanoseconds, ring[at + network : at + network + length], port)
            at += onward


def _packet(at: int, datagram: bytes, port: int) -> Packet:
    tcp = (datagram[0] & 0x0F) * 4
    end = int.from_bytes(datagram[2:4], "big") or len(datagram)
    source, target, seq = struct.unpack_from(">HHI", datagram, tcp)
    data = datagram[tcp + (datagram[tcp + 12] >> 4) * 4 : end]
    to_server = target == port
    client = source if to_server else target
    return Packet(at, client, to_server, bool(to_server and datagram[tcp + 13] & _SYN), seq, data)


class _Stream:
    """One direction of a connection: its bytes, and when each was first sent."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._next: int | None = None
        self._ends: list[int] = []
        self._at: list[int] = []

    def add(self, packet: Packet) -> bytes:
        """Add a packet and return its new bytes, without those that were sent before (retransmissions)."""
        ahead = 0 if self._next is None else (packet.seq - self._next + (1 << 31)) % (1 << 32) - (1 << 31)
        if ahead > 0:
            raise RuntimeError(f"{ahead} bytes of a stream are missing in the recording")
        new = packet.data[-ahead:]
        if new:
            self._next = (packet.seq + len(packet.data)) % (1 << 32)
            self.data += new
            self._ends.append(len(self.data))
            self._at.append(packet.at)
        return new

    def sent(self, offset: int) -> int:
        """When the byte at this offset was sent."""
        return self._at[bisect.bisect_right(self._ends, offset)]


def _connections(packets: Packets) -> list[list[Packet]]:
    """The packets with data of each connection, except of those that were open before the recording began."""
    open_now: dict[int, list[Packet]] = {}
    found = []
    for packet in packets:
        if packet.opens:
            open_now[packet.client] = []
            found.append(open_now[packet.client])
        elif packet.data and packet.client in open_now:
            open_now[packet.client].append(packet)
    return found


def http_exchanges(packets: Packets) -> list[Exchange]:
    """POST .../infer over HTTP/1.1. A connection has one request at a time: the next one begins with the first bytes after a
    response."""
    found = []
    for connection in _connections(packets):
        streams = {True: _Stream(), False: _Stream()}
        head, begin, end = b"", 0, 0
        for packet in connection:
            new = streams[packet.to_server].add(packet)
            if new and packet.to_server:
                if end and _infers(head):
                    found.append(Exchange(begin, end))
                if end or not begin:
                    head, begin, end = b"", packet.at, 0
                head += new
            elif new:
                end = packet.at
        if end and _infers(head):
            found.append(Exchange(begin, end))
    return found


def _infers(head: bytes) -> bool:
    method, _, rest = head.partition(b" ")
    return method == b"POST" and rest.partition(b" ")[0].endswith(b"/infer")


_HEADERS, _DATA, _CONTINUATION = 0x1, 0x0, 0x9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20
_PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


class _Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes
    begin: int
    """When its first byte was sent."""
    end: int
    """When its last byte was sent."""


def grpc_exchanges(packets: Packets) -> list[Exchange]:
    """ModelInfer over HTTP/2: from the first byte of the request's HEADERS to the last byte of the frame that ends the response."""
    found = []
    for connection in _connections(packets):
        requests, responses = _Stream(), _Stream()
        for packet in connection:
            (requests if packet.to_server else responses).add(packet)
        ended = _ended(_frames(responses, 0))
        for stream, (begin, path) in _begun(_frames(requests, _PREFACE)).items():
            if path.endswith("/ModelInfer") and stream in ended:
                found.append(Exchange(begin, ended[stream]))
    return found


def _frames(stream: _Stream, offset: int) -> Iterator[_Frame]:
    """The complete frames from this offset on."""
    data = stream.data
    while offset + 9 <= len(data):
        end = offset + 9 + int.from_bytes(data[offset : offset + 3], "big")
        if end > len(data):
            return
        number = int.from_bytes(data[offset + 5 : offset + 9], "big") & 0x7FFFFFFF
        payload = bytes(data[offset + 9 : end])
        yield _Frame(data[offset + 3], data[offset + 4], number, payload, stream.sent(offset), stream.sent(end - 1))
        offset = end


def _begun(frames: Iterator[_Frame]) -> dict[int, tuple[int, str]]:
    """When the first byte of each stream was sent, and its path."""
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 1 << 20  # the limit that the server sent is not tracked
    found: dict[int, tuple[int, str]] = {}
    begin, block = 0, b""
    for frame in frames:
        if frame.kind == _HEADERS:
            begin, block = frame.begin, _unpadded(frame)
        elif frame.kind == _CONTINUATION:
            block += frame.payload
        else:
            continue
        if frame.flags & _END_HEADERS:
            headers = dict(decoder.decode(block, raw=True))
            found.setdefault(frame.stream, (begin, headers.get(b":path", b"").decode()))
    return found


def _unpadded(frame: _Frame) -> bytes:
    start = bool(frame.flags & _PADDED) + (5 if frame.flags & _PRIORITY else 0)
    padding = frame.payload[0] if frame.flags & _PADDED else 0
    return frame.payload[start : len(frame.payload) - padding]


def _ended(frames: Iterator[_Frame]) -> dict[int, int]:
    """When the last byte of each stream's response was sent; for trailers in several frames, that of the last frame."""
    found: dict[int, int] = {}
    for frame in frames:
        ends = frame.kind in (_HEADERS, _DATA) and frame.flags & _END_STREAM
        if ends or (frame.kind == _CONTINUATION and frame.stream in found):
            found[frame.stream] = frame.end
    return found


EXCHANGES: dict[str, Callable[[Packets], list[Exchange]]] = {"http": http_exchanges, "grpc": grpc_exchanges}
