"""What a request, or its traffic class, sends in addition to what all requests of the run send."""

import json
from typing import Any

import numpy as np
import pytest

from inferometer.tensors import from_numpy
from inferometer.types import Calls, Request, RequestOptions
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.http1 import ID
from inferometer.wire.http2.hpack import HpackDecoder
from inferometer.wire.target import parse

TEXT_APIS = ("chat", "completions", "embeddings")


def context(api: str, url: str = "http://user:pass@x", **more: Any) -> CallContext:
    return CallContext(api=api, model="base", targets=(parse(url),), tag="t", **more)


def headers(encoded: Calls, number: int, id: int = 7) -> list[tuple[str, str]]:
    """The headers of a request as they are sent, with names in lower case."""
    class_ = encoded.classes[number] if encoded.classes else -1
    head, _, _ = (encoded.head(0, class_) + ID % id + encoded.tails[number]).partition(b"\r\n\r\n")
    lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
    return [(name.lower(), value) for name, _, value in lines]


def body(encoded: Calls, number: int) -> dict[str, Any]:
    return dict(json.loads(encoded.tails[number].partition(b"\r\n\r\n")[2]))


@pytest.mark.parametrize("api", TEXT_APIS)
def test_a_request_may_name_another_model_and_override_the_body(api: str) -> None:
    own = RequestOptions(model="lora-7", body={"priority": 2, "temperature": 1})
    requests = [Request(0, "a", 1, 0), Request(1, "b", 1, 0, options=own)]
    encoded = calls.encode(context(api, body={"temperature": 0}), requests)
    plain, other = body(encoded, 0), body(encoded, 1)
    assert (plain["model"], plain["temperature"], "priority" in plain) == ("base", 0, False)
    assert (other["model"], other["temperature"], other["priority"]) == ("lora-7", 1, 2)


def test_generate_takes_the_body_of_a_request() -> None:
    own = RequestOptions(body={"temperature": 1})
    encoded = calls.encode(context("generate", body={"temperature": 0}), [Request(0, "a", 1, 4, options=own)])
    assert body(encoded, 0)["temperature"] == 1


@pytest.mark.parametrize("api", [*TEXT_APIS, "generate"])
def test_a_request_may_have_headers_of_its_own(api: str) -> None:
    requests = [Request(0, "a", 1, 0, options=RequestOptions(headers={"X-Session-ID": "s1"})), Request(1, "b", 1, 0)]
    encoded = calls.encode(context(api), requests)
    assert ("x-session-id", "s1") in headers(encoded, 0)
    assert "x-session-id" not in dict(headers(encoded, 1))
    assert encoded.classes == ()


@pytest.mark.parametrize("api", [*TEXT_APIS, "generate", "kserve"])
def test_the_headers_of_a_class_override_those_of_the_run(api: str) -> None:
    payload = (from_numpy("x", np.zeros(1, np.float32)),) if api == "kserve" else "a"
    class_headers = ({"x-tenant": "gold", "AUTHORIZATION": "Bearer g"}, {})
    shared = context(api, headers={"X-Tenant": "none", "X-Other": "1"}, class_headers=class_headers)
    encoded = calls.encode(shared, [Request(n, payload, 1, 0, class_=n % 2) for n in range(3)])
    assert encoded.classes == (0, 1, 0)
    for number, tenant in enumerate(("gold", "none", "gold")):
        sent = headers(encoded, number)
        assert [value for name, value in sent if name == "x-tenant"] == [tenant]
        assert ("x-other", "1") in sent
        assert dict(sent)["x-request-id"].endswith("-000000000007")
    assert dict(headers(encoded, 0))["authorization"] == "Bearer g"
    assert dict(headers(encoded, 1))["authorization"].startswith("Basic ")


def test_grpc_has_a_header_block_per_class() -> None:
    shared = context("kserve", "grpc://x", headers={"x-tenant": "none"}, class_headers=({"X-Tenant": "gold"}, {}))
    tensors = (from_numpy("x", np.zeros(1, np.float32)),)
    own = RequestOptions(model="other")
    encoded = calls.encode(
        shared, [Request(0, tensors, 0, 0, class_=0, options=own), Request(1, tensors, 0, 0, class_=1)]
    )
    blocks = [dict(HpackDecoder().decode(encoded.head(0, class_), 1 << 16) or ()) for class_ in (0, 1)]
    assert [block[b"x-tenant"] for block in blocks] == [b"gold", b"none"]
    assert b"other" in encoded.tails[0]
    assert b"base" in encoded.tails[1]
