"""HPACK (RFC 7541): header blocks <-> lists of fields.

The decoder supports everything that a server may use. The encoder uses no connection state, so that a block can be made
ahead of time and sent on any connection.
"""

from collections.abc import Iterable

from inferometer.wire.http2 import huffman
from inferometer.wire.http2.events import Fields
from inferometer.wire.http2.frames import DEFAULT_TABLE

ENTRY_OVERHEAD = 32
"""Bytes that a field counts in addition to its name and value, in tables and in limits on header lists."""
NO_TABLE = b"\x20"
"""A dynamic table size update to 0: at the start of a block it announces that the encoder has dropped its table."""

STATIC: Fields = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"), (b":path", b"/index.html"),
    (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"), (b":status", b"204"), (b":status", b"206"),
    (b":status", b"304"), (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""), (b"accept", b""),
    (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""), (b"authorization", b""),
    (b"cache-control", b""), (b"content-disposition", b""), (b"content-encoding", b""), (b"content-language", b""),
    (b"content-length", b""), (b"content-location", b""), (b"content-range", b""), (b"content-type", b""),
    (b"cookie", b""), (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""), (b"if-range", b""),
    (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""), (b"location", b""), (b"max-forwards", b""),
    (b"proxy-authenticate", b""), (b"proxy-authorization", b""), (b"range", b""), (b"referer", b""), (b"refresh", b""),
    (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""), (b"strict-transport-security", b""),
    (b"transfer-encoding", b""), (b"user-agent", b""), (b"vary", b""), (b"via", b""), (b"www-authenticate", b""),
)  # fmt: skip

_STATIC_COUNT = len(STATIC)
_DYNAMIC = 0x81 + _STATIC_COUNT
"""The first byte of a reference to the dynamic table."""
_FIELD_AT = {entry: index for index, entry in enumerate(STATIC, 1) if entry[1]}
_NAME_AT = {name: index for index, (name, _) in reversed(list(enumerate(STATIC, 1)))}
_SECRET = {b"authorization", b"proxy-authorization", b"cookie"}
"""Headers that no proxy may put into a table either: the contents of a table can be guessed from message sizes."""


class HpackError(ValueError):
    """The block is not valid HPACK; the message says why."""


# --- encoding --------------------------------------------------------------------------------------------------------


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode fields with references to the static table and plain literals without indexing.

    Two such blocks in a row form one valid block. Raises ValueError unless names are in lower case and pseudo-headers come
    first.
    """
    block = bytearray()
    seen_regular = False
    for name, value in fields:
        _check_field(name, value, seen_regular)
        seen_regular = seen_regular or name[0] != 0x3A
        block += _field(name, value)
    return bytes(block)


def _check_field(name: bytes, value: bytes, seen_regular: bool) -> None:
    if not name or name != name.lower() or any(byte <= 0x20 or byte >= 0x7F for byte in name) or b":" in name[1:]:
        raise ValueError(f"{name!r} is not a valid HTTP/2 header name: it must be in lower case and without spaces")
    if seen_regular and name[0] == 0x3A:
        raise ValueError(f"{name!r} must come before all headers without a colon")
    if value != value.strip(b" \t") or any(byte in b"\0\r\n" for byte in value):
        raise ValueError(
            f"{value!r} is not a valid value for the header {name!r}: line breaks, zero bytes and outer spaces are not allowed"
        )


def _field(name: bytes, value: bytes) -> bytes:
    field_index = _FIELD_AT.get((name, value))
    if field_index is not None:
        return _pack_integer(field_index, 7, 0x80)
    name_index = _NAME_AT.get(name, 0)
    first = _pack_integer(name_index, 4, 0x10 if name in _SECRET else 0x00)
    return first + (_string(value) if name_index else _string(name) + _string(value))


def _string(text: bytes) -> bytes:
    return _pack_integer(len(text), 7, 0x00) + text


def _pack_integer(value: int, bits: int, pattern: int) -> bytes:
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((pattern | value,))
    packed = bytearray((pattern | limit,))
    value -= limit
    while value >= 0x80:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


# --- decoding --------------------------------------------------------------------------------------------------------


class HpackDecoder:
    """Decodes the blocks of one connection, in the order of their arrival, to lists of fields."""

    __slots__ = ("_allowed_size", "_max_size", "_size", "_table", "changes")

    def __init__(self, max_table: int = DEFAULT_TABLE) -> None:
        self._allowed_size = max_table  # the limit that we set
        self._max_size = max_table  # the limit that the server's encoder chose
        self._table: list[tuple[bytes, bytes]] = []  # the newest entry is last
        self._size = 0
        self.changes = 0
        """Incremented whenever the table changes: until then, a block keeps its meaning."""

    @property
    def table(self) -> Fields:
        """The dynamic table, newest first."""
        return tuple(reversed(self._table))

    @property
    def table_size(self) -> int:
        return self._size

    def decode(self, block: bytes, limit: int) -> Fields | None:
        """Return the fields, or None if the list is larger than `limit` (the table is updated in either case)."""
        fields: list[tuple[bytes, bytes]] = []
        at, end, size, table = self._size_updates(block), len(block), 0, self._table
        short = min(_DYNAMIC + len(table), 0xFF)  # from here on, a reference is not valid or takes more than one byte
        while at < end:
            byte = block[at]
            if byte & 0x80:  # a reference to an entry
                if 0x80 < byte < _DYNAMIC:
                    entry = STATIC[byte - 0x81]
                    at += 1
                elif _DYNAMIC <= byte < short:
                    entry = table[_DYNAMIC - byte - 1]
                    at += 1
                else:
                    index, at = _integer(block, at, 7)
                    entry = self._entry(index)
            elif byte & 0x40:  # a literal that is added to the table
                entry, at = self._literal(block, at, 6)
                self._add(entry)
                short = min(_DYNAMIC + len(table), 0xFF)
            elif byte & 0x20:
                raise HpackError("a table size update follows a field, or is the third one in its block")
            else:
                entry, at = self._literal(block, at, 4)
            size += len(entry[0]) + len(entry[1]) + ENTRY_OVERHEAD
            if size <= limit:
                fields.append(entry)
        return tuple(fields) if size <= limit else None

    def _size_updates(self, block: bytes) -> int:
        """Apply the size updates at the start of a block: at most two, the smallest size since the last block and the size
        now. Return the position after them."""
        at = 0
        for _ in range(2):
            if at < len(block) and block[at] & 0xE0 == 0x20:
                size, at = _integer(block, at, 5)
                if size > self._allowed_size:
                    raise HpackError(f"a table size update to {size}, but at most {self._allowed_size} is allowed")
                self._max_size = size
                self.changes += 1
                self._evict(0)
        return at

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[tuple[bytes, bytes], int]:
        index, at = _integer(block, at, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _text(block, at)
        value, at = _text(block, at)
        return (name, value), at

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= _STATIC_COUNT:
            return STATIC[index - 1]
        age = index - _STATIC_COUNT
        if index and age <= len(self._table):
            return self._table[-age]
        raise HpackError(
            f"a reference to entry {index}, but the table has only {_STATIC_COUNT + len(self._table)} entries"
        )

    def _add(self, entry: tuple[bytes, bytes]) -> None:
        size = len(entry[0]) + len(entry[1]) + ENTRY_OVERHEAD
        self.changes += 1
        self._evict(size)
        if size <= self._max_size:
            self._table.append(entry)
            self._size += size

    def _evict(self, needed: int) -> None:
        """Drop the oldest entries until `needed` more bytes fit or the table is empty."""
        count = 0
        while self._size + needed > self._max_size and count < len(self._table):
            name, value = self._table[count]
            self._size -= len(name) + len(value) + ENTRY_OVERHEAD
            count += 1
        del self._table[:count]


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    limit = (1 << bits) - 1
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    for shift in range(0, 35, 7):
        if at >= len(block):
            raise HpackError("the block ends in the middle of a number")
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HpackError("a number has more than 35 bits")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    if at >= len(block):
        raise HpackError("the block ends in the middle of a field")
    length = block[at]
    is_huffman = length & 0x80
    if length < 0x7F:
        at += 1
    else:
        length, at = _integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise HpackError(f"a string of {length} bytes, but only {len(block) - at} bytes of the block are left")
    if not is_huffman:
        return block[at:end], end
    try:
        return huffman.decode(block[at:end]), end
    except ValueError as error:
        raise HpackError(str(error)) from None
