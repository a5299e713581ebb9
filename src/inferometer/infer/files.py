"""Reading files that are named on the command line."""

from pathlib import Path

from inferometer.errors import UserError


def read(path: str, flag: str) -> bytes:
    """Read a file; raises UserError that names the flag."""
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{flag}: {path!r:.200}: {reason}", "give a readable file") from None
