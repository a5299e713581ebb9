"""summary.json: the summary's structs as they are, in their order. NaN and infinities are null."""

import msgspec

from inferometer.analysis.summary import Summary


def encode(summary: Summary) -> bytes:
    """The same bytes for the same summary."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
