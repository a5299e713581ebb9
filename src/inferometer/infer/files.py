"""Files that the command line names."""

from pathlib import Path

from inferometer.errors import UserError


def read(path: str, flag: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{flag}: {path!r:.200}: {reason}", "give a file that can be read") from None
