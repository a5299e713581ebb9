"""The paths of the OpenAI endpoints: which text model a request is for, and what becomes of the request.

The simulator responds by itself (`respond`), which keeps its tokens on time; for real models, `_InProgress` does.
"""

import secrets
import time
from functools import partial

import msgspec

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import check_method, reply
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, TextPart, reason
from inferometer.serve.openai.requests import APIS, check_supported, invalid, parse
from inferometer.serve.openai.response import Response, Stream, embeddings_body, tokens_body
from inferometer.serve.sim.server import Simulator
from inferometer.wire.http1_requests import Request


class OpenAi:
    """The OpenAI endpoints of all text models."""

    def __init__(self, models: Models, sim: Simulator | None) -> None:
        self._models = models
        self._simulated = {} if sim is None else dict.fromkeys(sim.names, sim)  # also by the names of its adapters

    def handle(self, connection: Connection, request: Request) -> None:
        path = request.path
        if not self._simulated and not self._served():
            self._models.check_lost()
            raise Refused("NOT_FOUND", f"no such path: {path.decode('latin-1')}: no text model is served")
        if path == b"/v1/models" or path.startswith(b"/v1/models/"):
            check_method(request, b"GET", b"HEAD")
            reply(connection, request, 200, self._listed(path[len(b"/v1/models/") :].decode("latin-1")))
            return
        if path not in APIS:
            raise Refused("NOT_FOUND", f"no such path: {path.decode('latin-1')}")
        check_method(request, b"POST")
        asked = parse(path, request.body)
        model = self._find(asked.fields.model)
        if isinstance(model, Simulator):
            model.respond(connection, request, asked)
            return
        if asked.api != "tokenize" and (asked.api == "embedding") == model.decoupled:
            verb = "compute embeddings" if asked.api == "embedding" else "generate text"
            raise invalid(f"the model {model.name!r} does not {verb}")
        if asked.only_simulated:
            raise invalid(f"{asked.only_simulated} is not supported")
        check_supported(request.body)
        kind = Stream if asked.stream else Response
        _InProgress(self._models, model, kind(connection, request, asked, model.name, secrets.randbits(64)))

    def _served(self) -> dict[str, Model | Simulator]:
        """Return the text models by name."""
        models = map(self._models.find, self._models.names())
        return self._simulated | {model.name: model for model in models if model.max_len}

    def _find(self, name: str | None) -> Model | Simulator:
        """Return the model with this name, or the only one if the request names none."""
        if name in self._simulated:
            return self._simulated[name]
        served = self._served()
        if name is None:
            names = [name for name, model in served.items() if name == model.name]  # without adapters
            if len(names) != 1:
                raise invalid(f"the request must name one of these models: {', '.join(names)}")
            (name,) = names
        if name not in served:
            if self._models.is_known(name):
                self._models.find(name)  # raises the reason if it is being loaded, or its process has ended
            which = ", ".join(map(repr, served)) + (" are" if len(served) > 1 else " is")
            what = f"the model {name!r} does not exist; {which} served"
            raise Refused("NOT_FOUND", what, label="model_not_found")
        return served[name]

    def _listed(self, only: str) -> bytes:
        """Return all models, or the one with this name."""
        about = {"object": "model", "created": int(time.time()), "owned_by": "inferometer"}
        rows = {}
        for name, model in self._served().items():
            rows[name] = {"id": name, **about, "max_model_len": model.max_len}
            if name != model.name:
                rows[name]["parent"] = model.name
        if only and only not in rows:
            raise Refused("NOT_FOUND", f"the model {only!r} does not exist", label="model_not_found")
        return msgspec.json.encode(rows[only] if only else {"object": "list", "data": list(rows.values())})


class _InProgress:
    """One request to a real model: an inference like others, whose parts become bytes on the connection."""

    def __init__(self, models: Models, model: Model, out: Response) -> None:
        self._model, self._out, self._offload = model, out, models.offload
        self._last: TextPart | None = None
        inference = Inference(model.name, {}, self._received, self._ended, out.request.arrived, text=out.asked)
        models.submit(inference, was_let_in=True, model=model)
        if not inference.is_over:
            out.connection.gone = partial(models.cancel, inference)

    def _received(self, part: TextPart) -> None:
        out = self._out
        if self._last is None:
            out.n_in = part.prompt_tokens
            out.begin()
        self._last = part
        if part.text:
            out.text(msgspec.json.encode(part.text)[1:-1], part.tokens)  # what is between the quotes
        else:
            out.written += part.tokens

    def _ended(self, why: Refused | None) -> None:
        out, last = self._out, self._last
        if why is not None or last is None:
            out.fail(why or Refused("INTERNAL", "the model returned no response"))
            return
        out.started, out.stopped = last.started, last.stopped
        if out.asked.api == "tokenize":
            reply(out.connection, out.request, 200, tokens_body(last.data, self._model.max_len))
        elif out.asked.api == "embedding":
            write = partial(embeddings_body, self._model.name, last.data, out.asked.fields.encoding_format, out.n_in)
            self._offload.run(sum(map(len, last.data)), write, self._send)
        else:
            out.end(last.finish_reason or "stop")

    def _send(self, body: bytes | None, error: BaseException | None) -> None:
        if body is None or self._out.connection.transport.closed:
            self._out.fail(reason(error or RuntimeError("no body")))
        else:
            self._out.send(body)
