"""The HTTP front end: routes paths to the parts of the server, checks the token, and refuses requests while draining.

/v1/...    the OpenAI endpoints of text models
/tokenize  their tokenizers, as vLLM offers its own
/v2/...    KServe v2 with Triton's extensions
/metrics   Prometheus metrics
/health    liveness of the server

If a token is set, everything except health, readiness and metrics requires it. An unexpected error while handling a
request is that request's 500, and the server continues.
"""

import re
from collections.abc import Awaitable, Callable

from inferometer.serve import access
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import check_method, refuse, reply
from inferometer.serve.kserve.http import Kserve
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused, reason
from inferometer.serve.offload import run_to_end
from inferometer.serve.openai.routes import OpenAi
from inferometer.serve.prometheus import CONTENT_TYPE
from inferometer.serve.settings import Settings
from inferometer.serve.sim.server import Simulator
from inferometer.wire.http1_requests import Problem, Request

Metrics = Callable[[], Awaitable[bytes]]
"""Returns /metrics of all processes."""
_OPEN = re.compile(rb"/health|/metrics|/v2/health/.*|/v2/models/[^/]*(/[^/]*/[^/]*)?/ready", re.DOTALL)
"""Paths that require no token."""


class Web:
    """The handler of all connections."""

    def __init__(
        self, settings: Settings, models: Models, sim: Simulator | None, metrics: Metrics, has_models: bool = True
    ) -> None:
        self.connect = lambda transport: Connection(transport, self, settings.limits, settings.access_log)
        """The listener's `make_protocol`."""
        self._models, self._metrics, self._token = models, metrics, settings.token
        self._kserve, self._openai = Kserve(models, settings), OpenAi(models, sim)
        self._has_models = has_models  # not on the port for metrics

    def handle(self, connection: Connection, request: Request) -> None:
        path = request.path
        try:
            if self._token is not None and not _OPEN.fullmatch(path) and (why := self._why_not(request)):
                raise Refused("UNAUTHENTICATED", why, label="invalid_api_key", headers=access.CHALLENGE)
            if self._has_models and (path.startswith(b"/v2/") or path == b"/v2"):
                self._kserve.handle(connection, request)
            elif self._has_models and (path.startswith(b"/v1/") or path == b"/tokenize"):
                self._models.check_open(was_let_in=request.began < self._models.refused_from)
                self._openai.handle(connection, request)
            else:
                self._page(connection, request)
        except Refused as refused:
            refuse(connection, request, refused, close=self._models.refuses)
        except Exception as error:  # keep serving
            refuse(connection, request, reason(error), close=True)

    def problem(self, connection: Connection, request: Request, problem: Problem) -> None:
        refused = Refused("INVALID_ARGUMENT", problem.message, status=problem.status, label="bad_request")
        refuse(connection, request, refused, close=True)

    def _why_not(self, request: Request) -> str:
        given = request.headers.get(b"authorization", b"")
        if not given and (key := request.headers.get(b"x-api-key")):  # the header of Anthropic's clients
            given = b"Bearer " + key
        return access.why_not(self._token, given)

    def _page(self, connection: Connection, request: Request) -> None:
        path = request.path
        if path not in (b"/health", b"/metrics"):
            shown = path.decode("latin-1")
            known = "/v2, /v1/models, /health and" if self._has_models else "on this port only /health and"
            raise Refused("NOT_FOUND", f"no such path: {shown}; there are {known} /metrics")
        check_method(request, b"GET", b"HEAD")
        if path == b"/metrics":
            run_to_end(self._send_metrics(connection, request))
        elif self._models.refuses:
            reply(connection, request, 503, b'{"status":"stopping"}', close=True)
        else:
            reply(connection, request, 200, b'{"status":"ok"}')

    async def _send_metrics(self, connection: Connection, request: Request) -> None:
        try:
            body = await self._metrics()
        except Exception as error:  # keep serving
            refuse(connection, request, reason(error), close=True)
        else:
            close = self._models.refuses and self._has_models  # the port for metrics can be read until the end
            reply(connection, request, 200, body, content_type=CONTENT_TYPE, close=close)
