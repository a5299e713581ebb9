"""summary.json: the structs of the summary, in their order. NaN and infinities become null."""

import msgspec

from inferometer.analysis.summary import Summary


def encode(summary: Summary) -> bytes:
    """Encode a summary; equal summaries give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
