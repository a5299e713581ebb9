"""llama.cpp: `llama-server`, or the same server from the package xllamacpp (scripts/xllamacpp_server.py). It wants a GGUF file."""

import shutil
from pathlib import Path

from inferometer.config.engines import EngineSpec
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
    program,
    visible_gpus,
)

_INSTALL = "pip install xllamacpp, or build llama.cpp"
_NAME = "llama-server"
_SCRIPT = Path(__file__).with_name("scripts") / "xllamacpp_server.py"
_ALL_LAYERS = 999


def _launch(start: Start) -> Launch:
    spec, args = start.spec, dashed(start.spec.args)
    model = _gguf(start)
    server = _server(spec)
    if spec.dtype:
        raise EngineError(
            f"dtype {spec.dtype}: llama.cpp uses the data types of the GGUF file",
            "convert the model, and remove `dtype`",
        )
    layers = None if spec.device is None else 0 if spec.device == "cpu" else _ALL_LAYERS
    alias = str(args.get("alias", Path(model).stem))
    defaults = {"alias": alias, "n-gpu-layers": layers, "metrics": True}
    own = {"model": model, "host": "127.0.0.1", "port": start.port}
    return Launch(
        command=(*server, *flags(args, defaults, own)),
        url=f"http://127.0.0.1:{start.port}",
        env=visible_gpus(spec.device),
        server={"model": alias},
        milestones=_MILESTONES,
        facts=known_facts(
            prefix_cache=not args.get("no-cache-prompt", False),
            speculation=args.get("model-draft", False),
            chat_template=args.get("chat-template", args.get("chat-template-file", "the model's")),
            device=spec.device,
        ),
        fact_lines=_FACT_LINES,
        version=(*server, "--version"),
    )


def _gguf(start: Start) -> str:
    """The file: `model`, the only GGUF of a folder, or the file beside the folder with its name."""
    model = Path(local_model(start.model))
    if model.is_dir():
        found = sorted(model.glob("*.gguf")) or [
            path for path in (model.with_name(f"{model.name}.gguf"),) if path.is_file()
        ]
        if len(found) == 1:
            return str(found[0])
    elif model.is_file():
        return str(model)
    raise EngineError(
        f"llama.cpp needs one GGUF file, and {model} is not one",
        "convert the model (llama.cpp's convert_hf_to_gguf.py), and give this engine its path as `model`",
    )


def _server(spec: EngineSpec) -> tuple[str, ...]:
    if spec.executable or (not spec.python and shutil.which(_NAME)):
        return (program(spec, _NAME, _INSTALL),)
    if spec.python and (beside := Path(spec.python).expanduser().parent / _NAME).is_file():
        return (str(beside),)
    return (interpreter(spec, "xllamacpp", _INSTALL), str(_SCRIPT))


_MILESTONES = (
    ("weights loaded", r"load_model: initializing, n_slots|initializing slots, n_slots"),
    ("initialised", r"model loaded\s*$"),
    ("listening", r"listening on http"),
)
_FACT_LINES = (
    ("dtype", r"file type\s+= (?:all )?(\w+)"),
    ("max length", r"n_ctx_slot = (\d+)"),
    ("slots", r"n_slots = (\d+)"),
)

ENGINE = ServerEngine(_launch, _INSTALL)
