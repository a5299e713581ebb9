"""Loads a model like the server does, and runs requests given as arrays."""

from pathlib import Path
from typing import Any

import numpy as np

from inferometer.serve.models.types import Loaded, Loading
from inferometer.tensors import Tensor, from_numpy, to_numpy
from inferometer.wire import protobuf

ModelConfig = protobuf.bundled("kserve").message("inference.ModelConfig")


def loading(path: Path | None = None, *, device: str = "cpu", name: str = "m", **config: Any) -> Loading:
    """Return a Loading; `path` is the model's file or folder, `config` the configuration as JSON with plain
    `parameters`."""
    parameters = {key: {"string_value": value} for key, value in config.pop("parameters", {}).items()}
    made = protobuf.parse(ModelConfig, protobuf.encode(ModelConfig, {"name": name, "parameters": parameters, **config}))
    folder, file = (path.parent, path) if path is not None and path.is_file() else (path, None)
    if file is None and folder is not None:
        file = next((one for one in sorted(folder.iterdir()) if one.suffix in (".onnx", ".pt", ".pt2", ".py")), None)
    return Loading(name, made, folder=folder, file=file, device=device)


def field(name: str, datatype: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{datatype}", "dims": list(dims), **more}


def words(*values: bytes | str) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def given(**arrays: Any) -> dict[str, Tensor]:
    return {
        name: array if isinstance(array, Tensor) else from_numpy(name, np.asarray(array))
        for name, array in arrays.items()
    }


def run_model(loaded: Loaded, parameters: dict[str, Any] | None = None, **arrays: Any) -> dict[str, Any]:
    assert loaded.run is not None
    made = loaded.run(given(**arrays), parameters or {})
    assert isinstance(made, dict)
    assert all(name == tensor.name for name, tensor in made.items())
    return {name: to_numpy(tensor) for name, tensor in made.items()}


def listed(fields: Any) -> list[tuple[Any, ...]]:
    """Return name, type and dims of a configuration's inputs or outputs."""
    kinds = fields[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return [(one.name, kinds[one.data_type].name.removeprefix("TYPE_"), tuple(one.dims)) for one in fields]
