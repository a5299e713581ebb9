"""From a request to a generation (or embeddings) of a real model, and back to bytes on the connection.

Prompts are tokenized first, in a thread if they are long. A client that disconnects cancels its generation.
"""

from collections.abc import Callable

import numpy as np

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, reason
from inferometer.serve.openai.frames import Frames, embeddings_body, escaped, json_bytes
from inferometer.serve.openai.model import FinishReason, Generation, TextModel
from inferometer.serve.openai.requests import Refusal, TextRequest, check_supported, refusal_of
from inferometer.serve.openai.response import Stream, Whole


def respond(
    models: Models,
    model: TextModel,
    connection: Connection,
    request: Request,
    asked: TextRequest,
    frames: Frames,
    n: int,
) -> None:
    """Respond to a request now or later; raises Refusal or Refused if that is known at once."""
    is_embedding = asked.api == "embedding"
    if asked.api != "tokenize" and not (model.can_embed if is_embedding else model.can_generate):
        verb = "compute embeddings" if is_embedding else "generate text"
        raise Refusal(400, f"the model {model.name!r} does not {verb}", "unsupported_endpoint")
    check_supported(request.body)
    kind = Stream if asked.stream else Whole
    _InProgress(models, model, asked, kind(connection, request, asked, frames, n, 0)).begin()


class _InProgress:
    """One request in progress."""

    __slots__ = ("_asked", "_entered", "_generation", "_inference", "_model", "_offload", "_out")

    def __init__(self, models: Models, model: TextModel, asked: TextRequest, out: Stream | Whole) -> None:
        self._model, self._asked, self._out, self._offload = model, asked, out, models.offload
        self._generation: Generation | None = None
        self._inference = Inference(model.name, {}, lambda outputs: None, self._fail, out.request.arrived)
        """For the server's limit on requests, and the model's draining and statistics; tokenizing is not counted."""
        self._entered = models.enter(self._inference) if asked.api != "tokenize" else None

    def begin(self) -> None:
        self._out.connection.gone = self._client_gone
        then = {"embedding": self._embed, "tokenize": self._list_tokens}.get(self._asked.api, self._generate)
        size = sum(map(len, self._asked.parts))
        self._offload.run(size, self._encode, lambda ids, error: self._step(then, ids, error))

    def _encode(self) -> list[list[int]]:
        if self._asked.messages:
            return [self._model.encode_chat(list(self._asked.messages))]
        return [self._model.encode(part) if isinstance(part, str) else part for part in self._asked.parts]

    def _step(
        self, step: Callable[[list[list[int]]], None], ids: list[list[int]] | None, error: BaseException | None
    ) -> None:
        """Continue with the tokens of the prompts, unless there are none or the client has gone."""
        if self._inference.is_over:
            return
        if error is None and ids is not None:
            self._out.n_in = sum(map(len, ids))
            try:
                step(ids)
                return
            except (Refusal, Refused) as refused:
                error = refused
        self._fail(error)

    # --- generating --------------------------------------------------------------------------------------------------

    def _generate(self, prompts: list[list[int]]) -> None:
        (prompt,), asked, sampling = prompts, self._asked, self._asked.sampling
        n_in, most = len(prompt), self._model.max_len
        n_out = asked.n_out or most - n_in
        if n_in + max(n_out, 1) > most:
            why = f"{n_in} prompt tokens plus max_tokens {n_out} exceed the model's maximum of {most} tokens"
            raise Refusal(400, why, "context_length_exceeded")
        self._generation = generation = Generation(
            prompt, tokens=self._tokens, ended=self._ended, max_tokens=n_out, arrived=self._out.request.arrived,
            temperature=1.0 if sampling.temperature is None else sampling.temperature, top_p=sampling.top_p or 1.0,
            top_k=max(sampling.top_k or 0, 0), seed=sampling.seed, stop=sampling.stops,
            ignore_eos=sampling.ignore_eos, min_tokens=sampling.min_tokens,
        )  # fmt: skip
        self._model.generate(generation)
        self._out.begin()

    def _tokens(self, text: str, count: int) -> None:
        if text:
            self._out.text(escaped(text), count)
        else:
            self._out.written += count

    def _ended(self, why: FinishReason, refused: Refused | None) -> None:
        if why == "abort":
            self._fail(refused or Refused("UNAVAILABLE", "the generation was aborted"))
            return
        assert self._generation is not None
        self._inference.started = self._out.started = self._generation.started
        self._out.stopped = self._generation.stopped
        self._leave()
        self._out.end(why)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _leave(self, why: Refused | None = None) -> None:
        """End the request for the model: no callback of it does anything from now on."""
        self._inference.ended = lambda why: None
        if self._entered is not None:
            self._entered.left(self._inference, why)
        self._inference.is_over = True
        if why is not None and self._generation is not None:
            self._model.cancel(self._generation)

    def _client_gone(self) -> None:
        self._leave(Refused("CANCELLED", "the client disconnected"))
        self._out.finish(False)

    def _fail(self, error: BaseException | None) -> None:
        """End the request with an error: ours, the model's, or that the server stops."""
        if isinstance(error, Refusal):
            refused = Refused("INVALID_ARGUMENT", error.message)
        else:
            refused = reason(error or RuntimeError("the model returned no result"))
        self._leave(refused)
        self._out.fail(error if isinstance(error, Refusal) else refusal_of(refused))

    # --- tokens and embeddings ---------------------------------------------------------------------------------------

    def _list_tokens(self, ids: list[list[int]]) -> None:
        content = {"count": len(ids[0]), "max_model_len": self._model.max_len, "tokens": ids[0]}
        self._send(json_bytes(content))

    def _embed(self, inputs: list[list[int]]) -> None:
        longest = max(map(len, inputs))
        if longest > self._model.max_len:
            why = f"{longest} tokens of an input exceed the model's maximum of {self._model.max_len} tokens"
            raise Refusal(400, why, "context_length_exceeded")
        self._model.embed(inputs, self._embedded)

    def _embedded(self, vectors: list[np.ndarray] | None, refused: Refused | None) -> None:
        if self._inference.is_over:
            return
        wanted = self._asked.dimensions
        if vectors is None:
            self._fail(refused)
        elif wanted is not None and wanted != vectors[0].size:
            why = f"dimensions must be {vectors[0].size}, the length of this model's vectors (got {wanted})"
            self._fail(Refusal(400, why, "invalid_dimensions"))
        else:
            size, given = sum(vector.nbytes for vector in vectors), (vectors, self._asked.packed, self._out.n_in)
            self._offload.run(size, lambda: embeddings_body(self._model.name, *given), self._made)

    def _made(self, body: bytes | None, error: BaseException | None) -> None:
        if self._inference.is_over:
            return
        if body is None:
            self._fail(error)
        else:
            self._send(body)

    def _send(self, body: bytes) -> None:
        self._leave()
        assert isinstance(self._out, Whole)
        self._out.send(body)
