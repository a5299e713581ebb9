"""Server-sent events as the standard defines them: from bytes to events, and where each of them ends.

Lines end in LF, CRLF or CR; a BOM may precede the first one; a line that starts with a colon is a comment; the `data` lines
of one event are joined by LF; a blank line ends an event, and an event without data is ignored. One lenient addition covers servers
that exist in practice: a field named `error` is treated as an event of that name.
"""

import re
from collections.abc import Iterable
from itertools import accumulate, repeat

Messages = tuple[Iterable[bytes], list[bytes], list[int]]
"""Events: the name and the data of each, and its end: the number of bytes up to the first one of the line end that makes it complete."""

_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r)")


def complete(data: bytes) -> int:
    """Return the number of bytes up to the end of the last complete event; 0: none is.

    The second byte of a CRLF may follow this end. It then makes a blank line of its own at the start of what follows, which is ignored."""
    last = max(data.rfind(b"\n\n"), data.rfind(b"\n\r"), data.rfind(b"\r\r"))
    return last + 2 if last >= 0 else 0


def messages(data: bytes, is_start: bool) -> Messages:
    """Return the events of bytes that end with a complete one. `is_start`: a stream starts with them."""
    if data[:6] == b"data: ":  # nearly always, all events are one line each
        lines = data[6:-2].split(b"\n\ndata: ")
        if data.count(b"\n") == 2 * len(lines) and b"\r" not in data:
            return repeat(b""), lines, list(accumulate([len(line) + 8 for line in lines]))
    names, found, ends = list[bytes](), list[bytes](), list[int]()
    name, values = b"", list[bytes]()
    for match in _LINE.finditer(data, len(_BOM) if is_start and data.startswith(_BOM) else 0):
        field, _, value = match[1].partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            values.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            name = field
            values.append(value)
        elif not match[1]:
            if values:
                names.append(name)
                found.append(b"\n".join(values))
                ends.append(match.start(2) + 1)
            name, values = b"", []
    return names, found, ends
