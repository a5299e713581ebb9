"""One request under way: what is known of it so far. It becomes a row when it ends."""

from inferometer.types import Usage


class Flight:
    __slots__ = (
        "arrivals",
        "attempts",
        "bytes_in",
        "bytes_out",
        "connect_from",
        "counts",
        "data",
        "first_byte",
        "held",
        "held_from",
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

    def __init__(self, id: int, n: int, url: int, stage: int, intended: int, user: int = -1) -> None:
        self.id = id
        self.n = n  # which of the calls' tails
        self.url = url
        self.stage = stage
        self.intended = intended
        self.user = user  # closed loop: whose request it is
        self.held = 0
        self.held_from = 0  # since when something other than the client holds it up; 0: nothing does
        self.connect_from = 0
        self.attempts = 0
        self.sent = 0
        self.first_byte = 0
        self.arrivals: list[int] = []
        self.counts: list[int] = []
        self.usage: Usage | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.read_delay = -1
        self.data = b""
