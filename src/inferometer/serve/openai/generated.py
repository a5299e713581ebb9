"""From a request to a generation (or embeddings) of a real model, and back to bytes on the connection.

Prompts are tokenized first, in a thread if they are long. A client that disconnects cancels its generation.
"""

import inspect
from functools import partial

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, reason
from inferometer.serve.offload import OnDone, result_of
from inferometer.serve.openai.frames import embeddings_body, escaped, tokenize_body
from inferometer.serve.openai.model import Generation, TextModel
from inferometer.serve.openai.requests import Refusal, TextRequest, check_supported, refusal_of, too_long
from inferometer.serve.openai.response import Stream, Whole

_EMBEDDING, _TOKENIZE = "embedding", "tokenize"


def respond(
    models: Models, model: TextModel, connection: Connection, request: Request, asked: TextRequest, n: int
) -> None:
    """Respond to a request; raises Refusal or Refused if the model cannot serve it."""
    is_embedding = asked.api == _EMBEDDING
    if asked.api != _TOKENIZE and not (model.can_embed if is_embedding else model.can_generate):
        verb = "compute embeddings" if is_embedding else "generate text"
        raise Refusal(400, f"the model {model.name!r} does not {verb}", "unsupported_endpoint")
    check_supported(request.body)
    out = (Stream if asked.stream else Whole)(connection, request, asked, model.name, n)
    _InProgress(models, model, asked, out)


class _InProgress:
    """One request in progress."""

    def __init__(self, models: Models, model: TextModel, asked: TextRequest, out: Stream | Whole) -> None:
        self._model, self._asked, self._out, self._offload = model, asked, out, models.offload
        self._generation: Generation | None = None
        self._inference = Inference(model.name, {}, lambda outputs: None, self._fail, out.request.arrived)
        """For the server's limit on requests, and the model's draining and statistics; tokenizing is not counted."""
        self._entered = models.enter(self._inference) if asked.api != _TOKENIZE else None
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
                prompt, self._tokens, ended, n_out, self._out.request.arrived,
                temperature=1.0 if sampling.temperature is None else sampling.temperature,
                top_p=sampling.top_p or 1.0, top_k=max(sampling.top_k or 0, 0), seed=sampling.seed,
                stop=sampling.stops, ignore_eos=sampling.ignore_eos, min_tokens=sampling.min_tokens,
            )  # fmt: skip
            self._model.generate(self._generation)
            self._out.begin()

        how = await result_of(start)
        assert self._generation is not None
        self._inference.started = self._out.started = self._generation.started
        self._out.stopped = self._generation.stopped
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

    # --- the end -----------------------------------------------------------------------------------------------------

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
