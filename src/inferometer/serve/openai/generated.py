"""From a request to a generation (or embeddings) of a real model, and back to bytes on the connection.

Prompts are tokenized first, in a thread if they are long. A client that disconnects cancels its generation.
"""

from collections.abc import Callable

import numpy as np

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.models.types import Refused
from inferometer.serve.offload import Offload
from inferometer.serve.openai.frames import Frames, embeddings_body, escaped, json_bytes
from inferometer.serve.openai.model import FinishReason, Generation, TextModel
from inferometer.serve.openai.requests import Refusal, TextRequest, check_supported, refusal_of
from inferometer.serve.openai.response import Stream, Whole


def respond(
    model: TextModel,
    connection: Connection,
    request: Request,
    asked: TextRequest,
    frames: Frames,
    n: int,
    offload: Offload,
) -> None:
    """Respond to a request now or later; raises Refusal or Refused if that is known at once."""
    if asked.api in ("completion", "chat", "message"):
        check_supported(asked.sampling)
        if not model.can_generate:
            raise Refusal(400, f"the model {model.name!r} does not generate text", "unsupported_endpoint")
    elif asked.api == "embedding" and not model.can_embed:
        raise Refusal(400, f"the model {model.name!r} does not compute embeddings", "unsupported_endpoint")
    kind = Stream if asked.stream else Whole
    _InProgress(model, asked, kind(connection, request, asked, frames, n, 0), offload).begin()


class _InProgress:
    """One request in progress."""

    __slots__ = ("_asked", "_generation", "_model", "_offload", "_out", "_over")

    def __init__(self, model: TextModel, asked: TextRequest, out: Stream | Whole, offload: Offload) -> None:
        self._model = model
        self._asked = asked
        self._out = out
        self._offload = offload
        self._generation: Generation | None = None
        self._over = False

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
        if self._over:
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
            prompt,
            tokens=self._tokens,
            ended=self._ended,
            max_tokens=n_out,
            arrived=self._out.request.arrived,
            temperature=1.0 if sampling.temperature is None else sampling.temperature,
            top_p=sampling.top_p or 1.0,
            top_k=max(sampling.top_k or 0, 0),
            seed=sampling.seed,
            stop=sampling.stops,
            ignore_eos=sampling.ignore_eos,
            min_tokens=sampling.min_tokens,
        )
        self._model.generate(generation)
        self._out.begin()

    def _tokens(self, text: str, count: int) -> None:
        if self._over:
            return
        if text:
            self._out.text(escaped(text), count)
        else:
            self._out.written += count

    def _ended(self, reason: FinishReason, refused: Refused | None) -> None:
        if self._over:
            return
        if reason == "abort":
            self._fail(refused or Refused("UNAVAILABLE", "the generation was aborted"))
            return
        self._over = True
        if self._generation is not None:
            self._out.started = self._generation.started
        self._out.end(reason)

    def _client_gone(self) -> None:
        self._over = True
        if self._generation is not None:
            self._model.cancel(self._generation)
        self._out.finish(False)

    def _fail(self, error: BaseException | None) -> None:
        self._over = True
        if isinstance(error, Refused):
            error = refusal_of(error)
        elif not isinstance(error, Refusal):
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            error = Refusal(500, f"internal server error: {line:.300}", "internal_error", "server_error")
        self._out.fail(error)

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
        if self._over:
            return
        wanted = self._asked.dimensions
        if vectors is None:
            self._fail(refused)
        elif wanted is not None and wanted != vectors[0].size:
            why = f"dimensions must be {vectors[0].size}, the length of this model's vectors (got {wanted})"
            self._fail(Refusal(400, why, "invalid_dimensions"))
        else:
            size = sum(vector.nbytes for vector in vectors)
            self._offload.run(size, lambda: self._vectors(vectors), self._made)

    def _vectors(self, vectors: list[np.ndarray]) -> bytes:
        return embeddings_body(self._model.name, vectors, self._asked.packed, self._out.n_in)

    def _made(self, body: bytes | None, error: BaseException | None) -> None:
        if self._over:
            return
        if body is None:
            self._fail(error)
        else:
            self._send(body)

    def _send(self, body: bytes) -> None:
        self._over = True
        assert isinstance(self._out, Whole)
        self._out.send(body)
