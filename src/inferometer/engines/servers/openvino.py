"""OpenVINO GenAI, behind a small HTTP server of ours (scripts/openvino_server.py). It wants a folder that optimum-cli has exported."""

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
)

_INSTALL = "pip install openvino-genai"
_SCRIPT = Path(__file__).with_name("scripts") / "openvino_server.py"
_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    model = _folder(start.model)
    python = interpreter(spec, "openvino_genai", _INSTALL)
    if spec.dtype and spec.dtype not in _PRECISIONS:
        raise EngineError(f"dtype {spec.dtype}: OpenVINO computes in {' | '.join(_PRECISIONS)}", "change `dtype`")
    defaults = {
        "inference-precision": _PRECISIONS[spec.dtype] if spec.dtype else None,
        "device": _device(spec.device),
    }
    own = {"model": model, "host": "127.0.0.1", "port": start.port}
    return Launch(
        command=(python, str(_SCRIPT), *flags(args, defaults, own)),
        url=f"http://127.0.0.1:{start.port}",
        server={"model": str(args.get("served-model-name", Path(model).name))},
        milestones=(("weights loaded", r"^Model loaded$"), ("listening", r"^Listening on ")),
        facts=known_facts(
            dtype=args.get("inference-precision", spec.dtype),
            max_length=args.get("max-model-len"),
            prefix_cache=bool(args.get("enable-prefix-caching")),
            speculation=False,
            chat_template="the model's",
            device=spec.device,
            parallelism=1,
        ),
        version=(python, str(_SCRIPT), "--version"),
    )


def _folder(model: str) -> str:
    path = Path(local_model(model))
    if not (path / "openvino_model.xml").is_file():
        raise EngineError(
            f"OpenVINO needs a folder with openvino_model.xml, and {path} is not one",
            "export it (optimum-cli export openvino -m MODEL FOLDER), and give this engine the folder as `model`",
        )
    return str(path)


def _device(device: str | None) -> str | None:
    if device is not None and device.startswith("cuda"):
        raise EngineError(
            f"device {device}: OpenVINO does not run on CUDA GPUs", "remove `device`, or set `args.device`"
        )
    return device.upper() if device else None


ENGINE = ServerEngine(_launch, _INSTALL)
