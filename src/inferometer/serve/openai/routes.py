"""The paths of the OpenAI endpoints: which text model a request is for, and what becomes of the request.

The simulator responds by itself (`respond`), which keeps its tokens on time; real models generate through `generated`.
"""

import secrets
import time
from collections.abc import Iterator

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.responses import reply
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused
from inferometer.serve.openai import generated
from inferometer.serve.openai.frames import json_bytes
from inferometer.serve.openai.model import TextModel
from inferometer.serve.openai.requests import DECODERS, Refusal, parse, refusal_of
from inferometer.serve.openai.response import refuse
from inferometer.serve.sim.server import Simulator


class OpenAi:
    """The OpenAI endpoints of all text models."""

    def __init__(self, models: Models, sim: Simulator | None) -> None:
        self._models = models
        self._sim = sim
        self._n = secrets.randbits(32) << 20  # so that the ids of all processes differ

    def handle(self, connection: Connection, request: Request) -> None:
        try:
            self._route(connection, request)
        except Refusal as refusal:
            refuse(connection, request, refusal)
        except Refused as refused:
            refuse(connection, request, refusal_of(refused))

    def names(self) -> list[str]:
        """Names of the text models, for the overview of what is served."""
        return [model.name for model in self._all()]

    def _route(self, connection: Connection, request: Request) -> None:
        path = request.path
        if next(self._all(), None) is None:
            self._models.check_lost()
            raise Refusal(404, f"no such path: {path.decode('latin-1')}: no text model is served", "not_found")
        if path == b"/v1/models" or path.startswith(b"/v1/models/"):
            _check_method(request, b"GET", b"HEAD")
            reply(connection, request, 200, self._listed(path[len(b"/v1/models/") :].decode("latin-1")))
            return
        if path in DECODERS:
            _check_method(request, b"POST")
        asked = parse(path, request.body)
        if asked.stream and request.http10:
            raise Refusal(400, "streaming requires HTTP/1.1", "http_version")
        model = self._find(asked.model)
        if isinstance(model, Simulator):
            model.respond(connection, request, asked)
        else:
            self._n += 1
            generated.respond(self._models, model, connection, request, asked, self._n)

    # --- text models -------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[TextModel | Simulator]:
        if self._sim is not None:
            yield self._sim
        found = (self._models.find(name).text for name in self._models.names())
        yield from (text for text in found if text is not None)

    def _find(self, name: str | None) -> TextModel | Simulator:
        """Return the model with this name, or the only one if the request names none."""
        if self._sim is not None and name in self._sim.names:
            return self._sim
        if name is None:
            models = list(self._all())
            if len(models) == 1:
                return models[0]
            names = ", ".join(model.name for model in models)
            raise Refusal(400, f"the request must name one of these models: {names}", "invalid_model")
        text = self._models.find(name).text if self._models.is_known(name) else None
        if text is None:
            served = ", ".join(repr(each) for model in self._all() for each in _names(model))
            verb = "are" if "," in served else "is"
            raise Refusal(404, f"the model {name!r} does not exist; {served} {verb} served", "model_not_found")
        return text  # type: ignore[no-any-return]

    def _listed(self, only: str) -> bytes:
        """Return all models, or the one with this name."""
        rows = [
            {"id": name, "object": "model", "created": int(time.time()), "owned_by": "inferometer"}
            | {"max_model_len": model.max_len}
            | ({"parent": model.name} if name != model.name else {})
            for model in self._all()
            for name in _names(model)
        ]
        if not only:
            return json_bytes({"object": "list", "data": rows})
        found = [row for row in rows if row["id"] == only]
        if not found:
            raise Refusal(404, f"the model {only!r} does not exist", "model_not_found")
        return json_bytes(found[0])


def _names(model: TextModel | Simulator) -> tuple[str, ...]:
    """Return the model's name and those of its adapters."""
    return model.names if isinstance(model, Simulator) else (model.name,)


def _check_method(request: Request, *allowed: bytes) -> None:
    if request.method not in allowed:
        message = f"method {request.method.decode('latin-1')} is not allowed for {request.path.decode('latin-1')}"
        raise Refusal(405, message, "method_not_allowed", headers=b"Allow: %b\r\n" % b", ".join(allowed))
