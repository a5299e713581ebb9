"""Checks the archive of an exported PyTorch program before PyTorch loads it.

PyTorch unpickles any pickles that it finds in a .pt2 and loads compiled code; both can run anything. Plain exported
programs contain neither: weights and constants are raw bytes, and the sample inputs are tensors, which can be read
without running code. Anything else in the archive is refused.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from inferometer.errors import UserError

_REMEDY = "save it with torch.export.save, with plain tensors as weights and inputs"
_COMPILED = ("data/aotinductor/", "data/executorch/", "data/mtia/")
_PAYLOADS = ("data/weights/", "data/constants/")
_SAMPLES = "data/sample_inputs/"
_OPAQUE = "opaque"


def check(torch: Any, name: str, path: Path) -> None:
    """Raise UserError if the archive contains anything that could run code."""
    with zipfile.ZipFile(path) as archive:
        full = archive.namelist()
        inner = [one.partition("/")[2] for one in full]  # all are in one folder, named like the file
        if "models/model.json" not in inner or len({one.partition("/")[0] for one in full}) != 1:
            raise UserError(f"model {name}: {path.name} is not an exported program, or has an outdated format", _REMEDY)
        if len(set(full)) != len(full):
            raise UserError(f"model {name}: {path.name} contains duplicate file names", _REMEDY)
        for at, one in zip(full, inner, strict=True):
            if found := _harm(torch, archive, at, one):
                raise UserError(f"model {name}: {path.name} was not loaded for safety: {one[:80]} {found}", _REMEDY)


def _harm(torch: Any, archive: zipfile.ZipFile, at: str, name: str) -> str:
    """Return what is unsafe about a file of the archive, or ""."""
    if name.startswith(_COMPILED):
        return "is compiled code, which could run anything"
    if name.startswith(_PAYLOADS) and name.endswith(".json"):
        return _pickled(json.loads(archive.read(at)))
    if name.startswith(_PAYLOADS) and name.endswith(".pt"):
        return "is a pickle, which could run anything"
    if name.startswith(_SAMPLES):
        try:
            torch.load(io.BytesIO(archive.read(at)), weights_only=True)
        except Exception:
            return "is a pickle of more than tensors, which could run anything"
    return ""


def _pickled(tree: Any) -> str:
    for key, payload in tree["config"].items():
        if payload["use_pickle"] or payload["path_name"].startswith(_OPAQUE):
            return f"declares {key[:80]} as a pickle, which could run anything"
    return ""
