"""Checks the archive of an exported PyTorch program before PyTorch loads it.

PyTorch unpickles any pickles that it finds in a .pt2 and loads compiled code; both can run anything. Plain exported
programs contain neither: weights and constants are raw bytes, and the sample inputs are tensors, which can be read
without running code. Anything else in the archive is refused.
"""

import io
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from inferometer.errors import UserError

_REMEDY = "save it with torch.export.save, with plain tensors as weights and inputs"
_COMPILED = ("data/aotinductor/", "data/executorch/", "data/mtia/")
_PAYLOADS = ("data/weights/", "data/constants/")
_SAMPLES = "data/sample_inputs/"


def check(torch: Any, name: str, path: Path) -> None:
    """Raise UserError if the archive contains anything that could run code."""
    with zipfile.ZipFile(path) as archive:
        full = archive.namelist()
        inner = {one.partition("/")[2]: one for one in full}  # all are in one folder, named like the file
        if "models/model.json" not in inner or len(inner) != len(full):
            raise UserError(f"model {name}: {path.name} is not an exported program, or has an outdated format", _REMEDY)
        for short, one in inner.items():
            if _can_run_code(torch, short, partial(archive.read, one)):
                what = f"{path.name} was not loaded for safety: {short[:80]} could run anything"
                raise UserError(f"model {name}: {what}", _REMEDY)


def _can_run_code(torch: Any, name: str, read: Callable[[], bytes]) -> bool:
    if name.startswith(_PAYLOADS) and name.endswith(".json"):
        payloads = json.loads(read())["config"].values()
        return any(one["use_pickle"] or one["path_name"].startswith("opaque") for one in payloads)
    if name.startswith(_SAMPLES):
        try:
            torch.load(io.BytesIO(read()), weights_only=True)
        except Exception:
            return True
    return name.startswith(_COMPILED) or (name.startswith(_PAYLOADS) and name.endswith(".pt"))
