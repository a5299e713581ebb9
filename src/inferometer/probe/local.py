"""Servers on the usual ports of this machine, for a user who gives no URL."""

import socket

from inferometer.errors import UserError
from inferometer.probe.scheme import with_scheme

PORTS = {
    8000: "vLLM, Triton over HTTP, `inferometer serve`",
    8001: "Triton over gRPC",
    8080: "llama.cpp, TGI, MLServer",
    30000: "SGLang",
    11434: "Ollama",
    3000: "BentoML, TGI in a container",
    1234: "LM Studio",
    5000: "text-generation-webui",
}
"""In the order in which they are tried, and what usually listens there."""
_TIMEOUT_S = 0.3


def find_server() -> str:
    """Return the URL of the first server that is found on loopback; raises UserError if there is none."""
    for port in PORTS:
        if _is_open(port):
            try:
                return with_scheme(f"127.0.0.1:{port}")
            except UserError:  # something listens, but it speaks neither HTTP nor gRPC
                continue
    raise UserError(
        f"no server was found on this machine: nothing listens on the ports {', '.join(map(str, PORTS))}",
        "start one, or give its URL; to try it out: inferometer serve --ttft 50ms --itl 10ms --max-batch 8",
    )


def _is_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S):
            return True
    except OSError:
        return False
