"""Server-sent events as the standard defines them: bytes in, (event name, data) out.

Lines end in LF, CRLF or CR; a BOM may precede the first one; a line that starts with a colon is a comment; the `data` lines
of one event are joined by LF; a blank line ends an event, and an event without data is ignored. Two lenient additions cover
servers that exist in practice: an event that is missing its blank line at the end of the stream still counts (`finish`),
and a field named `error` is treated as an event of that name.
"""

Message = tuple[bytes, bytes]

_BOM = b"\xef\xbb\xbf"


class EventStream:
    """Parser for one event stream, which may arrive in pieces of any size."""

    __slots__ = ("_after_cr", "_data", "_fresh", "_name", "_rest", "_started")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._rest = b""  # the line that is not yet complete
        self._after_cr = False  # the last line ended in CR: an LF that follows belongs to it
        self._started = False
        self._name = b""
        self._data: list[bytes] = []
        self._fresh = True  # nothing is buffered: the next piece starts a new event

    def single(self, piece: bytes) -> bytes | None:
        """Return the data of a piece that is exactly one unnamed event with one data line, which is nearly always the case.

        Returns None for any other piece, which must then go to `feed`.
        """
        if self._fresh and piece.find(b"\n") == len(piece) - 2 and piece[:6] == b"data: " and piece[-1] == 10:
            if 13 in piece:
                return None
            self._started = True
            return piece[6:-2]
        return None

    def feed(self, piece: bytes) -> list[Message]:
        """Return the events that `piece` completes."""
        data = self.single(piece)
        return self._lines(piece) if data is None else [(b"", data)]

    def finish(self) -> list[Message]:
        """End the stream; return the event that it cut off before its blank line, if any."""
        messages = self._lines(b"\n") if self._rest else []
        return messages + self._lines(b"\n\n") if self._data else messages

    def _lines(self, piece: bytes) -> list[Message]:
        if self._after_cr and piece:
            self._after_cr = False
            if piece[0] == 10:
                piece = piece[1:]
        lines = (self._rest + piece).splitlines(keepends=True)
        self._rest = lines.pop() if lines and lines[-1][-1] not in b"\r\n" else b""
        messages: list[Message] = []
        if lines:
            self._after_cr = lines[-1][-1] == 13 and not self._rest
            if not self._started:
                self._started = True
                lines[0] = lines[0].removeprefix(_BOM)
            for line in lines:
                self._line(line.rstrip(b"\r\n"), messages)
        self._fresh = not (self._rest or self._data or self._name or self._after_cr)
        return messages

    def _line(self, line: bytes, messages: list[Message]) -> None:
        if not line:
            if self._data:
                messages.append((self._name, b"\n".join(self._data)))
            self._name, self._data = b"", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"error":
            self._name = b"error"
            self._data.append(value)
