"""Processes large bodies in a thread, so that the event loop can serve other requests meanwhile.

The connection stays busy, so that responses keep their order and the server's shutdown waits for it. If the client goes
away or the server stops before the thread is done, its result is dropped.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.models.types import Refused

if TYPE_CHECKING:
    from inferometer.serve.kserve.routes import Kserve

LARGE = 64 * 1024
"""Size of JSON, or of data to be compressed, from which a thread costs less than blocking others: 1 to 3 ms of work."""
THREADS = 2
"""Python computes in one thread at a time, but others can compress and decompress meanwhile."""


class Aside:
    """A request whose body, or response body, is being processed in a thread."""

    __slots__ = ("_connection", "_is_over", "_request", "_then", "_web")

    def __init__(self, web: "Kserve", connection: Connection, request: Request, then: Callable[[Any], None]) -> None:
        self._web = web
        self._connection = connection
        self._request = request
        self._then = then
        self._is_over = False

    def begin(self, work: Callable[[], Any]) -> None:
        web = self._web
        web.threads.do(lambda: None if self._is_over else work(), self._done)
        web.aside.add(self)
        self._connection.gone = self._gone

    def refuse(self, why: Refused) -> None:
        """Stop waiting and refuse the request."""
        if self._end():
            self._web.refuse(self._connection, self._request, why)

    def _done(self, made: Any, error: BaseException | None) -> None:
        if not self._end():
            return
        if error is not None:
            self._web.refuse_for(self._connection, self._request, error)
            return
        try:
            self._then(made)
        except Exception as why:
            self._web.refuse_for(self._connection, self._request, why)

    def _gone(self) -> None:
        if self._end():
            self._connection.finish(keep_alive=False)

    def _end(self) -> bool:
        """Mark it as ended; return False if it was already."""
        if self._is_over:
            return False
        self._is_over = True
        self._web.aside.discard(self)
        self._connection.gone = None
        return True
