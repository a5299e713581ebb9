"""One request under way: a row in the making. Its first fields are records.ROW's, in that order; it is packed when it ends."""

import msgspec

from inferometer.records import ROW


class Flight(msgspec.Struct, gc=False):
    id: int
    intended: int
    sent: int = 0
    first_byte: int = 0
    first_token: int = 0
    last_token: int = 0
    done: int = 0
    held: int = 0
    read_delay: int = -1
    bytes_in: int = 0
    chunk_start: int = 0
    chunk_count: int = 0
    bytes_out: int = 0
    n_in: int = -1
    n_out: int = -1
    n_want: int = 0
    cached: int = -1
    reasoning: int = -1
    stage: int = 0
    shard: int = 0
    url: int = 0
    status: int = 0
    failure: int = 0
    counted_by: int = 0
    attempts: int = 0
    open_loop: int = 1
    # what a row does not have
    user: int = -1
    """Closed loop: whose request it is."""
    data: bytes = b""
    arrivals: list[int] = []
    counts: list[int] = []


COLUMNS = len(ROW.names or ())
assert Flight.__struct_fields__[:COLUMNS] == ROW.names
