"""Makes the requests of a shard: they are encoded before t=0, and get an id and an instant when they are due."""

from collections.abc import Sequence
from itertools import accumulate

from inferometer.engine.inflight import Flight
from inferometer.engine.sequences import Sequences
from inferometer.store.request_file import MappedBytes, in_memory
from inferometer.types import Calls, Request
from inferometer.wire.http1 import ID

NO_USER = -1
"""Stands for the user in an open loop, which has no users."""

Due = tuple[int, int]
"""A user of a closed loop whose next request is due (open loop: NO_USER), and the instant at which it is due."""


class _IdIndex:
    """Finds the encoded request for an id. The ids are a few ranges, so millions of them take no memory."""

    def __init__(self, ids: Sequence[range]) -> None:
        firsts = accumulate(map(len, ids), initial=0)
        self._ranges = list(zip(ids, firsts, strict=False))  # with the index of the first one's request
        self._select(ids[0].start)

    def _select(self, id: int) -> None:
        """Change to the range that has the id, or else to the last one that starts before it, which then goes on."""
        having = next((each for each in self._ranges if id in each[0]), None)
        if having is None:
            before = [each for each in self._ranges if each[0].start <= id] or self._ranges[:1]
            having = max(before, key=lambda each: each[0].start)
        ids, self._first = having
        self._start, self._step, self._count = ids.start, ids.step, len(ids)
        following = min((each[0].start for each in self._ranges if each[0].start > id), default=1 << 62)
        self._end = ids.start + self._count * self._step if id in ids else following

    def find(self, id: int) -> int:
        """Return the index of the request with this id; if there is none, of one in the range that the id would continue."""
        if not self._start <= id < self._end or (id - self._start) % self._step:
            self._select(id)
        return self._first + (id - self._start) // self._step % self._count


class Requests:
    def __init__(self, calls: Calls, shard: int, urls: int) -> None:
        # Without classes, a request's class is -1: the last, and only, heads.
        self._heads = calls.class_heads or (calls.heads,)
        self._classes = calls.classes
        self._tails = calls.tails if isinstance(calls.tails, MappedBytes) else in_memory(calls.tails)
        self._n_in, self._n_out = calls.n_in, calls.n_out
        self._index = _IdIndex(calls.ids) if calls.ids else None
        self._period = calls.period or 1 << 62
        self._encode = calls.encode
        self._most = calls.max_response
        self._has_sessions = calls.session is not None
        self._session_classes = calls.session_classes
        self._session_header, self._token_header = calls.session_header, f"\r\n{calls.token_header}: ".encode()
        self._counts_tokens = calls.counts_tokens
        self._has_checks = calls.check is not None
        self._shard = shard
        self._urls = urls
        self._made = 0
        self._last = 0  # index of the request that was made last
        self._has_id = calls.decoder is not None  # HTTP/1.1: the id goes between head and tail
        self._trace_header = calls.trace_header if self._has_id else None  # HTTP/2: the pool adds it (http2_pool.py)
        self.sequences = Sequences(calls.sequences) if calls.sequences else None

    def make(self, stage: int, ids: Sequence[int], due: Sequence[Due]) -> list[Flight]:
        """Return the next requests, with these ids."""
        heads, n_in, n_out, urls = self._heads, self._n_in, self._n_out, self._urls
        tails, offsets, has_id_only = self._tails.view, self._tails.offsets, self._has_id and not self._trace_header
        sequences, index, period, n = self.sequences, self._index, self._period, self._last
        classes, has_sessions, session_classes = self._classes, self._has_sessions, self._session_classes
        made = []
        for id, (user, intended) in zip(ids, due, strict=True):
            if sequences is not None:
                n, url = sequences.take((stage, user)), (self._shard + user) % urls
            else:
                url, key = id % urls, id % period
                if index is None:
                    n = self._made % len(n_in)
                    self._made += 1
                else:
                    n = index.find(key)
            tail, class_ = tails[offsets[n] : offsets[n + 1]], classes[n] if classes else -1
            head = heads[class_][url]
            is_session = has_sessions and (session_classes is None or class_ in session_classes)
            flight = Flight(
                id=id,
                intended=intended,
                n_in=n_in[n],
                n_want=n_out[n],
                class_=class_,
                stage=stage,
                shard=self._shard,
                url=url,
                open_loop=0 if user >= 0 else 1,
                user=user,
                most=self._most,
                data=b"".join((head, ID % id, tail))
                if has_id_only and not is_session
                else self._data(head, id, id if is_session else -1, tail),
            )
            if is_session:
                flight.session, flight.turn, flight.index = id, 0, n
            elif self._has_checks:
                flight.index = n
            made.append(flight)
        self._last = n
        return made

    def prefault(self) -> None:
        """Prepare the memory of the requests that come next. Call it every few milliseconds, when nothing is due."""
        self._tails.prefault(self._last)

    def make_turn(self, before: Flight, id: int, request: Request, planned: int = 0) -> Flight:
        """Return the next turn of a session, for the same URL, due its think time after the end of the turn `before`.

        If the turn was `planned` for an instant, it is due then; the turn before holds it back if it ends later."""
        assert self._encode is not None
        payload, url = request.payload, before.url
        ready = before.done + request.think
        intended = planned or ready
        tail = payload if isinstance(payload, bytes) else self._encode(request)
        return Flight(
            id=id,
            intended=intended,
            held=max(ready - intended, 0),
            n_in=(request.n_in or -1) if self._counts_tokens else -1,
            n_want=request.n_out,
            class_=before.class_,
            session=before.session,
            turns=before.turns,
            turn=before.turn + 1,
            stage=before.stage,
            shard=before.shard,
            url=url,
            open_loop=before.open_loop,
            user=before.user,
            most=before.most,
            token=before.token,
            data=self._data(self._heads[before.class_][url], id, before.session, tail, before.token),
        )

    def _data(self, head: bytes, id: int, session: int, tail: bytes | memoryview, token: bytes = b"") -> bytes:
        """Return the bytes to send: HTTP/1.1, with the id and the headers of the trace and the session, if any, between head and tail."""
        if not self._has_id:
            return bytes(tail)
        of_trace = self._trace_header(id) if self._trace_header is not None else b""
        of_session = b"%b%d" % (self._session_header, session) if self._session_header and session >= 0 else b""
        if token:
            of_session += self._token_header + token
        return b"".join((head, ID % id, of_trace, of_session, tail))
