"""The access log: one line on standard error for each request, over HTTP or gRPC. It has no headers and no bodies."""

import sys
from datetime import UTC, datetime
from urllib.parse import quote

from inferometer.timing.clock import now

_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


def write_line(client: str, method: str, path: str, status: str, arrived: int) -> None:
    """Write the time, the client, the method, the path, the status, and the time since the request arrived."""
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    words = when, client, method, quote(path, safe=_PRINTABLE), status
    sys.stderr.write(" ".join(word or "-" for word in words) + f" {(now() - arrived) / 1e6:.3f} ms\n")
