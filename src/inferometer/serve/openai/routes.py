"""The paths of the OpenAI endpoints: which text model a request is for, and what becomes of the request.

The simulator responds by itself (`respond`), which keeps its tokens on time; for real models, `_InProgress` does.
"""

import inspect
import secrets
import time
from functools import partial

import msgspec

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.responses import reply
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, reason
from inferometer.serve.offload import OnDone, result_of
from inferometer.serve.openai.model import Generation, TextModel
from inferometer.serve.openai.requests import DECODERS, Refusal, check_supported, parse, refusal_of, too_long
from inferometer.serve.openai.response import Stream, Whole, embeddings_body, escaped, refuse, tokenize_body
from inferometer.serve.sim.server import Simulator

_EMBEDDING, _TOKENIZE = "embedding", "tokenize"


class OpenAi:
    """The OpenAI endpoints of all text models."""

    def __init__(self, models: Models, sim: Simulator | None) -> None:
        self._models, self._sim = models, sim
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
        return [name for name, model in self._served().items() if name == model.name]

    def _route(self, connection: Connection, request: Request) -> None:
        path = request.path
        if self._sim is None and not self._served():
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
            return
        is_embedding = asked.api == _EMBEDDING
        if asked.api != _TOKENIZE and not (model.can_embed if is_embedding else model.can_generate):
            verb = "compute embeddings" if is_embedding else "generate text"
            raise Refusal(400, f"the model {model.name!r} does not {verb}", "unsupported_endpoint")
        check_supported(request.body)
        self._n += 1
        out = (Stream if asked.stream else Whole)(connection, request, asked, model.name, self._n)
        _InProgress(self._models, model, out)

    def _served(self) -> dict[str, TextModel | Simulator]:
        """Return the text models by name; the simulator also by the names of its adapters."""
        simulated = {} if self._sim is None else dict.fromkeys(self._sim.names, self._sim)
        texts = ((name, self._models.find(name).text) for name in self._models.names())
        return simulated | {name: text for name, text in texts if text is not None}

    def _find(self, name: str | None) -> TextModel | Simulator:
        """Return the model with this name, or the only one if the request names none."""
        if self._sim is not None and name in self._sim.names:
            return self._sim
        served = self._served()
        if name is None:
            if len(names := self.names()) == 1:
                return served[names[0]]
            raise Refusal(400, f"the request must name one of these models: {', '.join(names)}", "invalid_model")
        if name not in served:
            if self._models.is_known(name):
                self._models.find(name)  # raises the reason if it is being loaded, or its process has ended
            which = ", ".join(map(repr, served)) + (" are" if len(served) > 1 else " is")
            raise Refusal(404, f"the model {name!r} does not exist; {which} served", "model_not_found")
        return served[name]

    def _listed(self, only: str) -> bytes:
        """Return all models, or the one with this name."""
        rows = {
            name: {"id": name, "object": "model", "created": int(time.time()), "owned_by": "inferometer"}
            | {"max_model_len": model.max_len}
            | ({"parent": model.name} if name != model.name else {})
            for name, model in self._served().items()
        }
        if only and only not in rows:
            raise Refusal(404, f"the model {only!r} does not exist", "model_not_found")
        return msgspec.json.encode(rows[only] if only else {"object": "list", "data": list(rows.values())})


def _check_method(request: Request, *allowed: bytes) -> None:
    if request.method not in allowed:
        message = f"method {request.method.decode('latin-1')} is not allowed for {request.path.decode('latin-1')}"
        raise Refusal(405, message, "method_not_allowed", headers=b"Allow: %b\r\n" % b", ".join(allowed))


class _InProgress:
    """One request to a real model: its prompts become tokens, in a thread if they are long, then a generation (or
    vectors), and that becomes bytes on the connection. A client that disconnects cancels its generation."""

    def __init__(self, models: Models, model: TextModel, out: Stream | Whole) -> None:
        self._model, self._asked, self._out, self._offload = model, out.asked, out, models.offload
        self._generation: Generation | None = None
        self._inference = Inference(model.name, {}, lambda outputs: None, self._fail, out.request.arrived)
        """For the server's limit on requests, and the model's draining and statistics; tokenizing is not counted."""
        self._entered = models.enter(self._inference) if out.asked.api != _TOKENIZE else None
        out.connection.gone = self._client_gone
        self._task = models.loop.create_task(self._respond())

    async def _respond(self) -> None:
        try:
            prompts = await self._encoded()
            self._out.n_in = sum(map(len, prompts))
            if self._asked.api == _TOKENIZE:
                self._send(tokenize_body(prompts[0], self._model.max_len))
            elif self._asked.api == _EMBEDDING:
                self._send(await self._embeddings(prompts))
            else:
                await self._generate(prompts[0])
        except Exception as error:
            self._fail(error)

    async def _encoded(self) -> list[list[int]]:
        asked, model = self._asked, self._model
        work = partial(model.encode_chat, asked.messages) if asked.messages else partial(model.encode, asked.parts)
        made = await result_of(partial(self._offload.run, sum(map(len, asked.parts)), work))
        return await made if inspect.isawaitable(made) else made  # type: ignore[no-any-return]

    async def _generate(self, prompt: list[int]) -> None:
        asked, sampling = self._asked, self._asked.sampling
        n_in, most = len(prompt), self._model.max_len
        n_out = asked.n_out or most - n_in
        if n_in + max(n_out, 1) > most:
            raise too_long(n_in, n_out, f"the model's maximum of {most} tokens")

        def start(ended: OnDone) -> None:
            self._generation = Generation(
                prompt, self._tokens, ended, n_out,
                temperature=1.0 if sampling.temperature is None else sampling.temperature,
                top_p=sampling.top_p or 1.0, top_k=max(sampling.top_k or 0, 0), seed=sampling.seed,
                stop=sampling.stops, ignore_eos=sampling.ignore_eos, min_tokens=sampling.min_tokens,
            )  # fmt: skip
            self._model.generate(self._generation)
            self._out.source = self._generation
            self._out.begin()

        how = await result_of(start)
        self._inference.started = self._out.source.started
        self._leave()
        self._out.end(how)

    def _tokens(self, text: str, count: int) -> None:
        if text:
            self._out.text(escaped(text), count)
        else:
            self._out.written += count

    async def _embeddings(self, inputs: list[list[int]]) -> bytes:
        longest, most, wanted = max(map(len, inputs)), self._model.max_len, self._asked.dimensions
        if longest > most:
            why = f"{longest} tokens of an input exceed the model's maximum of {most} tokens"
            raise Refusal(400, why, "context_length_exceeded")
        vectors = await result_of(partial(self._model.embed, inputs))
        if wanted not in (None, vectors[0].size):
            why = f"dimensions must be {vectors[0].size}, the length of this model's vectors (got {wanted})"
            raise Refusal(400, why, "invalid_dimensions")
        write = partial(embeddings_body, self._model.name, vectors, self._asked.packed, self._out.n_in)
        size = sum(vector.nbytes for vector in vectors)
        return await result_of(partial(self._offload.run, size, write))  # type: ignore[no-any-return]

    def _send(self, body: bytes) -> None:
        assert isinstance(self._out, Whole)
        self._leave()
        self._out.send(body)

    def _leave(self, why: Refused | None = None) -> None:
        """End the request for the model."""
        self._inference.ended = lambda why: None
        if self._entered is not None:
            self._entered.left(self._inference, why)
        self._inference.is_over = True
        if why is not None and self._generation is not None:
            self._model.cancel(self._generation)

    def _client_gone(self) -> None:
        self._task.cancel()
        self._leave(Refused("CANCELLED", "the client disconnected"))
        self._out.finish()

    def _fail(self, error: BaseException | None) -> None:
        """End the request with an error: ours, the model's, or that the server stops."""
        self._task.cancel()
        is_ours = isinstance(error, Refusal)
        refused = Refused("INVALID_ARGUMENT", str(error)) if is_ours else reason(error or RuntimeError("no result"))
        self._leave(refused)
        self._out.fail(error if isinstance(error, Refusal) else refusal_of(refused))
