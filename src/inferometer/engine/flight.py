"""One request under way: what is known of it so far. It becomes a row when it ends."""

from inferometer.types import Usage


class Flight:
    __slots__ = (
        "arrivals",
        "attempts",
        "bytes_in",
        "counts",
        "data",
        "first_byte",
        "held",
        "id",
        "intended",
        "n",
        "read_delay",
        "sent",
        "stage",
        "url",
        "usage",
        "user",
    )

    def __init__(self, id: int, n: int, url: int, stage: int, intended: int, user: int, data: bytes) -> None:
        self.id = id
        self.n = n  # which of the calls' tails
        self.url = url
        self.stage = stage
        self.intended = intended
        self.user = user  # closed loop: whose request it is; open loop: -1
        self.data = data
        self.held = 0  # ns for which something other than the client held it up
        self.attempts = 0
        self.sent = 0
        self.first_byte = 0
        self.arrivals: list[int] = []
        self.counts: list[int] = []
        self.usage: Usage | None = None
        self.bytes_in = 0
        self.read_delay = -1
