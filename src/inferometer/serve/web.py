"""The HTTP front end: routes paths to the parts of the server, checks the token, and refuses requests while draining.

/v1/...    the OpenAI endpoints of text models
/tokenize  their tokenizers, as vLLM offers its own
/v2/...    KServe v2 with Triton's extensions
/metrics   Prometheus metrics
/health    liveness of the server
/          what is served

If a token is set, everything except health, readiness and metrics requires it. An unexpected error while handling a
request is that request's 500, and the server continues.
"""

import re
from collections.abc import Awaitable, Callable

import msgspec

from inferometer import __version__
from inferometer.serve import access
from inferometer.serve.http.connection import Connection, connections
from inferometer.serve.http.parse import Problem, Request
from inferometer.serve.http.responses import reply
from inferometer.serve.kserve import http_codec as kserve_http
from inferometer.serve.kserve.routes import Kserve
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import reason
from inferometer.serve.offload import run_to_end
from inferometer.serve.openai.requests import Refusal
from inferometer.serve.openai.response import refusal_body
from inferometer.serve.openai.routes import OpenAi
from inferometer.serve.prometheus import CONTENT_TYPE
from inferometer.serve.settings import Settings
from inferometer.serve.sim.server import Simulator

Metrics = Callable[[], Awaitable[bytes]]
"""Returns /metrics of all processes."""

_OPEN = re.compile(rb"/health|/metrics|/v2/health/.*|/v2/models/[^/]*(/[^/]*/[^/]*)?/ready", re.DOTALL)


class Web:
    """The handler of all connections."""

    def __init__(
        self, settings: Settings, models: Models, sim: Simulator | None, metrics: Metrics, has_models: bool = True
    ) -> None:
        self.connect = connections(self, settings.limits, settings.access_log)
        """The listener's `make_protocol`."""
        self._models, self._sim, self._metrics, self._token = models, sim, metrics, settings.token
        self._kserve, self._openai = Kserve(models, settings), OpenAi(models, sim)
        self._has_models = has_models  # not on the port for metrics

    def refuse_rest(self) -> int:
        """Refuse the requests whose bodies are still being processed. Return how many there were."""
        return self._kserve.refuse_rest()

    @property
    def _is_draining(self) -> bool:
        return self._models.refuses

    # --- a request ---------------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, request: Request) -> None:
        path = request.path
        try:
            if self._token is not None and not is_open(path) and (why := self._why_not(request)):
                kind = "authentication_error"
                raise Refusal(401, why, "invalid_api_key", kind, access.CHALLENGE)
            if not self._has_models:
                self._page(connection, request)
            elif path.startswith(b"/v2/") or path == b"/v2":
                self._kserve.handle(connection, request)
            elif path.startswith(b"/v1/") or path == b"/tokenize":
                if request.began >= self._models.refused_from:
                    why = "the server is shutting down and does not accept new requests"
                    raise Refusal(503, why, "shutting_down")
                self._openai.handle(connection, request)
            else:
                self._page(connection, request)
        except Refusal as refusal:
            self._refuse(connection, request, refusal)
        except Exception as error:  # keep serving
            self._fail(connection, request, error)

    def problem(self, connection: Connection, request: Request, problem: Problem) -> None:
        self._refuse(connection, request, Refusal(problem.status, problem.message, "bad_request"), close=True)

    def _why_not(self, request: Request) -> str:
        given = request.headers.get(b"authorization", b"")
        if not given and (key := request.headers.get(b"x-api-key")):  # the header of Anthropic's clients
            given = b"Bearer " + key
        return access.why_not(self._token, given)

    def _refuse(self, connection: Connection, request: Request, refusal: Refusal, close: bool = False) -> None:
        """Send an error in the format of the protocol that the path belongs to."""
        if request.path.startswith(b"/v1") or (self._sim is not None and not request.path.startswith(b"/v2")):
            body = refusal_body(request, refusal)
        else:
            body = kserve_http.error(refusal.message)
        close = close or self._is_draining
        reply(connection, request, refusal.status, body, extra=refusal.headers, close=close)

    def _fail(self, connection: Connection, request: Request, error: Exception) -> None:
        connection.gone = None
        self._refuse(connection, request, Refusal(500, reason(error).message, "internal_error"), close=True)

    # --- pages -------------------------------------------------------------------------------------------------------

    def _page(self, connection: Connection, request: Request) -> None:
        path, shown = request.path, request.path.decode("latin-1")
        if path not in (b"/", b"/health", b"/metrics"):
            raise Refusal(404, f"no such path: {shown}", "not_found")
        if request.method not in (b"GET", b"HEAD"):
            why = f"method {request.method.decode('latin-1')} is not allowed for {shown}"
            raise Refusal(405, why, "method_not_allowed", headers=b"Allow: GET, HEAD\r\n")
        if path == b"/metrics":
            run_to_end(self._send_metrics(connection, request))
            return
        status, tree = 200, self._served()
        if path == b"/health":
            status, tree = (503, {"status": "stopping"}) if self._is_draining else (200, {"status": "ok"})
        reply(connection, request, status, msgspec.json.encode(tree), close=self._is_draining)

    def _served(self) -> dict[str, object]:
        tree: dict[str, object] = {"name": "inferometer", "version": __version__}
        if self._has_models:
            tree["kserve"] = {"path": "/v2", "models": self._models.names()}
        if self._has_models and (names := self._openai.names()):
            tree["openai"] = {"path": "/v1", "models": names}
        return tree | {"health": "/health", "metrics": "/metrics"}

    async def _send_metrics(self, connection: Connection, request: Request) -> None:
        try:
            body = await self._metrics()
        except Exception as error:  # keep serving
            self._fail(connection, request, error)
        else:
            close = self._is_draining and self._has_models  # the port for metrics can be read until the end
            reply(connection, request, 200, body, content_type=CONTENT_TYPE, close=close)


def is_open(path: bytes) -> bool:
    """Whether this path requires no token."""
    return _OPEN.fullmatch(path) is not None
