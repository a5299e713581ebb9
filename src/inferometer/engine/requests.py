"""Makes the requests of a shard: they are encoded before t=0, used in turn, and get an id and an instant when they are due."""

from collections.abc import Sequence

from inferometer.engine.inflight import Flight
from inferometer.engine.sequences import Sequences
from inferometer.types import Calls, Request

NO_USER = -1
"""Stands for the user in an open loop, which has no users."""

Due = tuple[int, int]
"""A user of a closed loop whose next request is due (open loop: NO_USER), and the instant at which it is due."""


class Requests:
    def __init__(self, calls: Calls, shard: int, urls: int) -> None:
        self._heads = calls.heads
        self._encoded = list(zip(calls.tails, calls.n_in, calls.n_out, strict=True))
        self._index = {id: n for n, id in enumerate(calls.ids)}
        self._period = calls.period or 1 << 62
        self._encode = calls.encode
        self._has_sessions = calls.session is not None
        self._has_checks = calls.check is not None
        self._shard = shard
        self._urls = urls
        self._made = 0
        self._has_id = calls.decoder is not None  # HTTP/1.1: the id goes between head and tail
        self.sequences = Sequences(calls.sequences) if calls.sequences else None

    def make(self, stage: int, ids: Sequence[int], due: Sequence[Due]) -> list[Flight]:
        """Return the next requests, with these ids."""
        heads, encoded, urls, sequences = self._heads, self._encoded, self._urls, self.sequences
        distinct, index, period = len(encoded), self._index, self._period
        made = []
        for id, (user, intended) in zip(ids, due, strict=True):
            if sequences is not None:
                n, url = sequences.take((stage, user)), (self._shard + user) % urls
            else:
                n, url = index.get(id % period, -1) if index else -1, id % urls
                if n < 0:
                    n = self._made % distinct
            self._made += 1
            tail, n_in, n_out = encoded[n]
            flight = Flight(
                id=id,
                intended=intended,
                n_in=n_in,
                n_want=n_out,
                stage=stage,
                shard=self._shard,
                url=url,
                open_loop=0 if user >= 0 else 1,
                user=user,
                data=b"%b%d%b" % (heads[url], id, tail) if self._has_id else tail,
            )
            if self._has_sessions:
                flight.session, flight.turn, flight.index = id, 0, n
            elif self._has_checks:
                flight.index = n
            made.append(flight)
        return made

    def make_turn(self, before: Flight, id: int, request: Request) -> Flight:
        """Return the next turn of a session, for the same URL, due its think time after the end of the turn `before`."""
        assert self._encode is not None
        tail, url = self._encode(request), before.url
        return Flight(
            id=id,
            intended=before.done + request.think,
            n_in=request.n_in or -1,
            n_want=request.n_out,
            session=before.session,
            turn=before.turn + 1,
            stage=before.stage,
            shard=before.shard,
            url=url,
            open_loop=before.open_loop,
            user=before.user,
            data=b"%b%d%b" % (self._heads[url], id, tail) if self._has_id else tail,
        )
