"""The simulator as a text model of the KServe protocol: its timing model decides when tokens are sent.

`text_input` is the prompt and `max_tokens` the length of the response; each response of the decoupled model has the
words of one step in `text_output`. It shares timing, queue and batch with the OpenAI endpoints, so that protocols can
be compared.
"""

from collections.abc import Callable

from inferometer import tensors
from inferometer.serve.models.types import Begin, Emit, Finish, Loaded, Loading, Parameters, Refused, Tensors
from inferometer.serve.openai.requests import DEFAULT_TOKENS, Refusal
from inferometer.serve.sim.jobs import Job
from inferometer.serve.sim.server import Simulator
from inferometer.tensors import Tensor
from inferometer.timing.clock import now

CONFIG = """
backend: "simulator"
input [
  { name: "text_input", data_type: TYPE_STRING, dims: [ 1 ] },
  { name: "max_tokens", data_type: TYPE_INT32, dims: [ 1 ], optional: true }
]
output [{ name: "text_output", data_type: TYPE_STRING, dims: [ 1 ] }]
model_transaction_policy { decoupled: true }
"""


def loader(server: Simulator) -> Callable[[Loading], Loaded]:
    """Return a loader for the model that `server` simulates."""
    return lambda loading: Loaded(begin=_begin(server), slots=0)


class _Text(Job):
    """A response in progress: its words go to `send`, and `finish` is called at its end."""

    __slots__ = ("_at", "_finish", "_send", "_server", "_written")

    def __init__(self, server: Simulator, n: int, n_in: int, n_out: int, send: Emit, finish: Finish) -> None:
        super().__init__(n, n_in, n_out, now())
        self._server, self._send, self._finish = server, send, finish
        self._at, self._written = n * 7, 0

    def emit(self, count: int, due: int) -> None:
        text = self._server.words.text(self._at + self._written, count)
        self._written += count
        self._send({"text_output": _text_tensor(text)})
        if self._written == self.n_out:
            self._finish(None)


def _begin(server: Simulator) -> Begin:
    def begin(inputs: Tensors, parameters: Parameters, emit: Emit, finish: Finish) -> Callable[[], None] | None:
        text, n_out = _prompt(inputs)
        try:
            n_in = server.length((text,), n_out)
        except Refusal as refusal:
            raise Refused("INVALID_ARGUMENT", refusal.message) from None
        job = _Text(server, server.number(), n_in, n_out, emit, finish)
        if not server.timing.add(job, job.arrived):
            raise Refused("RESOURCE_EXHAUSTED", "the simulator's queue is full")
        server.clockwork.changed()

        def cancel() -> None:
            server.loop.call_soon(drop)  # `emit` must not call back into the timing model
            finish(None)

        def drop() -> None:
            server.timing.drop(job, now())
            server.clockwork.changed()

        return cancel

    return begin


def _prompt(inputs: Tensors) -> tuple[str, int]:
    text = tensors.to_numpy(inputs["text_input"]).item().decode("utf-8", "replace")
    if not text:
        raise Refused("INVALID_ARGUMENT", "text_input must not be empty")
    if "max_tokens" not in inputs:
        return text, DEFAULT_TOKENS
    n_out = int(tensors.to_numpy(inputs["max_tokens"]).item())
    if n_out < 1:
        raise Refused("INVALID_ARGUMENT", f"max_tokens must be at least 1 (got {n_out})")
    return text, n_out


def _text_tensor(text: bytes) -> Tensor:
    return Tensor("text_output", "BYTES", (1,), len(text).to_bytes(4, "little") + text)
