"""Our own reference server with a text model: `inferometer serve FOLDER`. The model `sim` is the simulator."""

import sys
from pathlib import Path
from typing import Any

from inferometer.engines.launching import (
    EngineError,
    Launch,
    ServerEngine,
    Start,
    dashed,
    flags,
    known_facts,
    local_model,
)

_INSTALL = "pip install 'inferometer[transformers]'"


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    python, model = spec.python or sys.executable, local_model(start.model)
    own = {"host": "127.0.0.1", "http": start.port, "grpc": -1, "metrics": -1}
    configured = [f"parameters.dtype={spec.dtype}"] if spec.dtype else []
    configured += _configured(args.pop("config", {}))
    if "port" in args:
        raise EngineError("args.port: inferometer sets this flag itself", "remove it; `url` sets the address")
    words = [*flags(args, {"device": spec.device}, own), *(word for each in configured for word in ("--config", each))]
    values = dict(each.partition("=")[::2] for each in configured)
    return Launch(
        command=(python, "-m", "inferometer", "serve", model, *words),
        url=f"http://127.0.0.1:{start.port}",
        ready="/v2/health/ready",
        server={"model": args.get("model", "sim") if model == "sim" else Path(model).name},
        milestones=(("listening", r"^Listening on "),),
        facts=known_facts(
            dtype=values.get("parameters.dtype"),
            max_length=values.get("parameters.max_length"),
            prefix_cache=False,
            speculation=False,
            chat_template="the model's",
            device=spec.device,
            parallelism=1,
        ),
        version=(python, "-m", "inferometer", "--version"),
    )


def _configured(given: Any) -> list[str]:
    """The values of --config: from a mapping such as {parameters.max_batch: 8}, or from one KEY=VALUE."""
    return [f"{key}={value}" for key, value in given.items()] if isinstance(given, dict) else [str(given)]


ENGINE = ServerEngine(_launch, _INSTALL)
