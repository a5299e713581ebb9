"""`inferometer.Client`: single inferences over HTTP and gRPC, and what a server says about itself and its models."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferometer.apis import APIS, names
from inferometer.config import from_mapping
from inferometer.config.secret import hidden, words
from inferometer.errors import UserError, named
from inferometer.infer import tensors, text
from inferometer.infer.endpoint import Endpoint
from inferometer.probe import kserve, openai, reach, roundtrip
from inferometer.probe.connect import Peer, Refused
from inferometer.probe.kept import Connections
from inferometer.probe.reach import Reached
from inferometer.probe.scheme import with_scheme
from inferometer.public.generated import Text, TextStream
from inferometer.public.inputs import tensor_of
from inferometer.tensors import Tensor, to_numpy
from inferometer.types import Messages
from inferometer.wire.kserve.control import NotOffered
from inferometer.wire.kserve.infer import InferOptions, InferResponse
from inferometer.wire.target import parse

Arrays = dict[str, NDArray[Any]]
Parameter = bool | int | float | str

_NAMES = {
    "server.url": "url",
    "server.api": "api",
    "server.model": "model",
    "server.version": "version",
    "server.stream": "Client.stream",
    "server.outputs": "outputs",
    "server.headers": "headers",
    "server.parameters": "parameters",
    "server.body": "parameters",
    "server.api_key_env": "api_key",
    "server.api_key_file": "api_key_file",
    "server.timeouts.connect": "timeout",
    "server.tls.verify": "verify",
    "server.tls.ca": "ca",
    "server.tls.cert": "cert",
    "server.tls.key": "key",
    "server.shared_memory": "shared memory (`inferometer run` with server.shared_memory)",
}
"""The argument of each config key."""


class Client:
    """A client for single inferences: tensors over KServe v2 (HTTP or gRPC), and text over OpenAI's or Triton's endpoints.

    `url`           http://, https://, grpc:// or grpcs://; without a scheme, the port is tried
    `api`           for `generate`: chat (the default), completions, Anthropic's messages, or Triton's generate
    `headers`       headers of every request; over gRPC, its metadata
    `api_key`       sent as a bearer token, or as messages has it; or `api_key_env`, `api_key_file`: where to read it
    `timeout`       seconds for each read of a response, which may take ten times as long in all; 0: no limit
    `verify`, `ca`  whether the server's certificate is verified, and by which CA (a PEM file); `cert` and `key` are the client's own

    Connections stay open between requests. Several threads may use one client: each request has a connection to itself. Use it in
    a `with` statement, or call `close`. Errors of the server, and everything else that a user can fix, are inferometer.Error.
    """

    def __init__(
        self,
        url: str,
        *,
        api: str = "chat",
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        api_key_file: str | None = None,
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
        verify: bool = True,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        with named(_NAMES):
            url = url if "://" in url else with_scheme(url)
            if api not in names(response="text"):
                raise UserError(
                    f"{api!r} does not generate text", f"use {', '.join(names(response='text'))}", "server.api"
                )
            if timeout < 0:
                raise UserError(f"timeout must be at least 0 (got {timeout:g})", "give seconds; 0: no limit")
            tree = {
                "url": url,
                "api": "kserve",
                "headers": dict(headers or {}),
                "api_key_env": api_key_env,
                "api_key_file": api_key_file,
                "timeouts": {"connect": connect_timeout},
                "tls": {"verify": verify, "ca": ca, "cert": cert, "key": key},
            }
            self._server = from_mapping({"server": tree}, source="").server
            generating = msgspec.structs.replace(self._server, api=api)
            self._secrets = (
                reach.secret_headers(generating) if api_key is None else reach.key_header(api, _key(api_key))
            )
            target = parse(url)
            context = reach.tls_context(self._server) if target.tls else None
            self._connections = Connections()
            self._peer = Peer(target, context, connect_timeout, timeout, self._connections)
            self._headers = reach.request_headers(target, generating, self._secrets)
        self._api = api
        self._datatypes: dict[tuple[str, str], dict[str, str]] = {}
        self._first_model = ""

    # --- tensors ---

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        *,
        outputs: Sequence[str] | None = None,
        version: str = "",
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Arrays:
        """Make one inference and return its outputs by name.

        Arrays are converted to the datatypes of the model, if no value changes but by rounding of floats; text and bytes become
        BYTES. Outputs are arrays that may be written to: BYTES as objects of type bytes, BF16, which numpy does not have, as float32.
        `outputs` requests some of the outputs only. Raises Error when the server refuses the request.
        """
        with self._errors():
            endpoint, given, asked = self._inference(model, inputs, False, outputs, version, parameters)
            received, _, fail = tensors.send(endpoint, given, asked)
            endpoint.raise_for(fail)
            return _arrays(received.responses[0][1])

    def stream(self, model: str, inputs: Mapping[str, ArrayLike], **options: Any) -> Iterator[Arrays]:
        """Make one inference over gRPC, with the options of `infer`, and yield the outputs of each response as it arrives."""
        with self._errors():
            if not self._peer.target.grpc:
                raise UserError("HTTP cannot stream responses", "give the grpc:// URL of the server", "server.stream")
            yield from map(_arrays, tensors.stream(*self._inference(model, inputs, True, **options)))

    def _inference(
        self, model: str, inputs: Mapping[str, ArrayLike], stream: bool, outputs: Sequence[str] | None = None,
        version: str = "", parameters: Mapping[str, Parameter] | None = None,
    ) -> tuple[Endpoint, list[Tensor], InferOptions]:  # fmt: skip
        known = self._known_datatypes(model, version)
        given = [tensor_of(name, value, known.get(name)) for name, value in inputs.items()]
        options = InferOptions("", dict(parameters or {}), tuple(outputs or ()), binary=self._is_binary)
        return self._endpoint("kserve", model, version=version, stream=stream), given, options

    def metadata(self, model: str | None = None, version: str = "") -> dict[str, Any]:
        """The metadata of a model (name, versions, platform, inputs, outputs), or of the server (name, version, extensions)."""
        with self._errors():
            found = (
                kserve.server_metadata(self._peer, self._headers)
                if model is None
                else kserve.model_metadata(self._peer, self._headers, model, version)
            )
            tree: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
            return tree

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        """The configuration of a model, as the server reports it. Raises Error when the server does not offer it."""
        with self._errors():
            return dict(kserve.model_config(self._peer, self._headers, model, version).raw)

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the server, or a model, is ready. A server that does not listen is not ready; nor is a model that it does not know."""
        with self._errors():
            try:
                if model is None:
                    return kserve.ready(self._peer, self._headers)
                return kserve.model_ready(self._peer, self._headers, model, version)
            except Refused:
                return False
            except NotOffered:
                if self._peer.target.grpc:
                    raise
                listed = [one.name for one in openai.listed(self._peer, self._headers)]
                return bool(listed) if model is None else model in listed

    # --- text ---

    @overload
    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        stream: Literal[False] = False,
        parameters: Mapping[str, Any] | None = None,
    ) -> Text: ...

    @overload
    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        stream: Literal[True],
        parameters: Mapping[str, Any] | None = None,
    ) -> TextStream: ...

    def generate(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        stream: bool = False,
        parameters: Mapping[str, Any] | None = None,
    ) -> Text | TextStream:
        """Generate a text from a prompt or from chat messages ([{"role": "user", "content": ...}]).

        `model` is the first that the server lists, by default. `parameters` are further fields of the request: {"temperature": 0}.
        `stream=True` returns an iterator over the pieces of the text as they arrive. The server streams in either case, so that
        the times of the tokens are known. Raises Error when the server refuses the request.
        """
        with self._errors():
            if self._peer.target.grpc:
                raise UserError("prompts are sent over HTTP", "give the http:// URL of the server", "server.url")
            options = {APIS[self._api].options_key: dict(parameters or {})}
            endpoint = self._endpoint(self._api, model or self._found_model(), stream=True, **options)
            payload: str | Messages = prompt if isinstance(prompt, str) else [dict(each) for each in prompt]
            data = text.encoded(endpoint, payload, max_tokens or 0)
        made = TextStream(
            endpoint, lambda response: roundtrip.http_events(endpoint.text_peer, data, response.decoder), self._errors
        )
        return made if stream else made.result

    # --- helpers ---

    def _found_model(self) -> str:
        """The model to use if none is named."""
        if not self._first_model:
            if APIS[self._api].discovery == "kserve":
                self._first_model = kserve.first_ready(self._peer, self._headers)
            else:
                self._first_model = openai.first_model(self._peer, self._headers).name
        return self._first_model

    @cached_property
    def _is_binary(self) -> bool:
        """Whether the server reads tensors that are not JSON."""
        with contextlib.suppress(UserError):  # the request itself will say what is wrong
            peer = self._peer
            return peer.target.grpc or kserve.server_metadata(peer, self._headers).name not in reach.JSON_ONLY
        return True

    def _known_datatypes(self, model: str, version: str) -> dict[str, str]:
        """The datatypes of the model's inputs, which are requested once; empty if the server does not report them."""
        if (model, version) not in self._datatypes:
            try:
                found = kserve.model_metadata(self._peer, self._headers, model, version).inputs
            except NotOffered:
                found = ()
            self._datatypes[model, version] = {one.name: one.datatype for one in found}
        return self._datatypes[model, version]

    def _endpoint(self, api: str, model: str, **settings: Any) -> Endpoint:
        server = msgspec.structs.replace(self._server, api=api, **settings)
        reached = Reached((self._peer.target,), (), model, self._secrets)
        return Endpoint(server, reached, self._peer, words(server, self._secrets))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Name settings as the arguments are named, and keep secrets out of messages."""
        with named(_NAMES), hidden(words(self._server, self._secrets)):
            yield

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<inferometer.Client {self._peer.target.url}>"


def _key(key: str) -> str:
    if not key.strip() or not key.isprintable() or not key.isascii():
        raise UserError(
            "the API key is empty, or has characters that are not allowed in a header", "check where it comes from"
        )
    return key.strip()


def _arrays(response: InferResponse) -> Arrays:
    return {one.name: np.array(to_numpy(one)) for one in response.outputs if isinstance(one, Tensor)}
