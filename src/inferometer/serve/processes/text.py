"""A text model in another process: what the OpenAI endpoints use of it, and the other end.

Tokenizing returns at once, so it waits for the other process; generating and computing embeddings do not.
"""

import itertools
import socket
import threading
from typing import Any

import msgspec
import numpy as np

from inferometer.serve.models.types import Refused, reason
from inferometer.serve.openai.model import Generation, TextModel, Vectors
from inferometer.serve.processes.link import LENGTH, Handlers, Link

_SENT = (
    "prompt", "max_tokens", "arrived", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "min_tokens",
)  # fmt: skip


FACTS = ("name", "max_len", "can_generate", "can_embed")


class RemoteText:
    """The text model as a front end sees it (openai.model.TextModel)."""

    def __init__(self, address: str, link: Link, name: str, max_len: int, can_generate: bool, can_embed: bool) -> None:
        """The last arguments are `FACTS`."""
        self.name, self.max_len, self.can_generate, self.can_embed = name, max_len, can_generate, can_embed
        self._link = link
        self._numbers = itertools.count(1)
        self._running: dict[int, Generation] = {}
        self._tasks: set[Any] = set()
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect("\0" + address)
        link.handlers |= {"tokens": self._tokens, "text_ended": self._ended}
        link.lost.add_done_callback(lambda _: self._lost())

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self._wait_for("encode", text)
        return tokens

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        tokens: list[int] = self._wait_for("encode_chat", messages)
        return tokens

    def generate(self, request: Generation) -> None:
        request.state = number = next(self._numbers)
        self._running[number] = request
        self._link.tell("generate", number, {name: getattr(request, name) for name in _SENT})

    def cancel(self, request: Generation) -> None:
        if self._running.pop(request.state, None):  # type: ignore[call-overload]
            self._link.tell("stop_text", request.state)

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        async def embed() -> None:
            try:
                made = await self._link.call("embed", inputs)
            except Refused as refused:
                then(None, refused)
            else:
                then([np.frombuffer(vector, np.float32) for vector in made], None)

        self._tasks.add(task := self._link.loop.create_task(embed()))
        task.add_done_callback(self._tasks.discard)

    def _wait_for(self, name: str, argument: Any) -> Any:
        """Return the result of a call; blocks for as long as the other process takes."""
        data = msgspec.msgpack.encode((1, name, (argument,)))
        with self._lock:
            try:
                self._socket.sendall(LENGTH.pack(len(data)) + data)
                reader = self._socket.makefile("rb")
                size = LENGTH.unpack(reader.read(LENGTH.size))[0]
                _, error, arguments = msgspec.msgpack.decode(reader.read(size))
            except (OSError, ValueError) as why:
                raise Refused("UNAVAILABLE", f"the process of model {self.name} ended: {why}") from None
        if error:
            raise Refused(*arguments)
        return arguments[0]

    def _tokens(self, number: int, text: str, count: int, queue_ns: int, started: int) -> None:
        if request := self._running.get(number):
            request.queue_ns, request.started = queue_ns, started
            request.tokens(text, count)

    def _ended(self, number: int, how: Any, why: list[Any]) -> None:
        if request := self._running.pop(number, None):
            request.ended(how, Refused(*why) if why else None)

    def _lost(self) -> None:
        self._socket.close()
        for number in list(self._running):
            self._ended(number, "abort", ["UNAVAILABLE", f"the process of model {self.name} ended"])


def serve(text: TextModel, link: Link) -> Handlers:
    """Return what a model's process does for a front end."""
    running: dict[int, Generation] = {}

    def generate(number: int, fields: dict[str, Any]) -> None:
        def tokens(new: str, count: int) -> None:
            link.tell("tokens", number, new, count, request.queue_ns, request.started)

        def ended(how: str, why: Refused | None) -> None:
            running.pop(number, None)
            link.tell("text_ended", number, how, [why.code, why.message] if why else [])

        request = Generation(tokens=tokens, ended=ended, **(fields | {"stop": tuple(fields["stop"])}))
        running[number] = request
        try:
            text.generate(request)
        except Exception as error:
            ended("abort", reason(error))

    def stop(number: int) -> None:
        if request := running.pop(number, None):
            text.cancel(request)

    async def embed(inputs: list[list[int]]) -> list[bytes]:
        future = link.loop.create_future()
        text.embed(inputs, lambda made, why: future.set_exception(why) if why else future.set_result(made))
        return [np.asarray(vector, np.float32).tobytes() for vector in await future]

    def stop_all(_: Any) -> None:
        for number in list(running):
            stop(number)

    link.lost.add_done_callback(stop_all)
    return {
        "generate": generate, "stop_text": stop, "embed": embed,
        "encode": text.encode, "encode_chat": text.encode_chat,
    }  # fmt: skip
