"""Our own reference server, with a text model."""

import sys

from inferometer.engines.launching import Launch, ServerEngine, Start, flags


def _launch(start: Start) -> Launch:
    spec = start.spec
    python = spec.python or sys.executable
    words = flags(spec.args, {"http-port": start.port, "grpc-port": 0})
    return Launch(
        command=(python, "-m", "inferometer", "serve", *words),
        url=f"http://127.0.0.1:{start.port}",
        ready="/v2/health/ready",
    )


ENGINE = ServerEngine(_launch, "pip install 'inferometer[transformers]'")
