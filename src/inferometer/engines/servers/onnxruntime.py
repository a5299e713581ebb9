"""ONNX Runtime GenAI, behind a small HTTP server of ours (scripts/onnxruntime_server.py). It wants a folder that its builder wrote."""

from pathlib import Path

from inferometer.engines.launching import (
    EngineError,
    Launch,
    ServerEngine,
    Start,
    dashed,
    flags,
    interpreter,
    known_facts,
    local_model,
    visible_gpus,
)

_INSTALL = "pip install onnxruntime-genai"
_SCRIPT = Path(__file__).with_name("scripts") / "onnxruntime_server.py"


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    model = _folder(start.model)
    python = interpreter(spec, "onnxruntime_genai", _INSTALL)
    if spec.dtype:
        raise EngineError(
            f"dtype {spec.dtype}: ONNX Runtime uses the data types of the model",
            "build the model with it, and remove `dtype`",
        )
    own = {"model": model, "host": "127.0.0.1", "port": start.port}
    provider = spec.device.partition(":")[0] if spec.device else None
    return Launch(
        command=(python, str(_SCRIPT), *flags(args, {"provider": provider}, own)),
        url=f"http://127.0.0.1:{start.port}",
        env=visible_gpus(spec.device),
        server={"model": str(args.get("served-model-name", Path(model).name))},
        milestones=(("weights loaded", r"^Model loaded$"), ("listening", r"^Listening on ")),
        facts=known_facts(
            max_length=args.get("max-model-len"),
            prefix_cache=False,
            speculation=False,
            chat_template="the model's",
            device=spec.device,
            parallelism=1,
        ),
        version=(python, str(_SCRIPT), "--version"),
    )


def _folder(model: str) -> str:
    path = Path(local_model(model))
    if not (path / "genai_config.json").is_file():
        raise EngineError(
            f"ONNX Runtime needs a folder with genai_config.json, and {path} is not one",
            "build it (python -m onnxruntime_genai.models.builder), and give this engine the folder as `model`",
        )
    return str(path)


ENGINE = ServerEngine(_launch, _INSTALL)
