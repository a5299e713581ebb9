"""The best classes of a classifier's answer, with their labels where there are any.

Triton has them by itself (its classification extension) and knows the labels: then an output's elements are strings,
`score:index:label`. Otherwise they are found here, in an output that looks like scores.
"""

from collections.abc import Sequence

import numpy as np

from inferometer.errors import UserError
from inferometer.infer import files
from inferometer.infer.flags import InferFlags
from inferometer.infer.result import ClassScore
from inferometer.probe.kserve import ModelFacts
from inferometer.tensors import Tensor, to_numpy

_EXTENSION = "classification"
_FLOATS = ("FP16", "BF16", "FP32", "FP64")
_NO_SCORES = ("BYTES", "BOOL")
_FEWEST = 2

Rows = tuple[tuple[ClassScore, ...], ...]


def asked_of_server(options: InferFlags, facts: ModelFacts) -> tuple[str, ...]:
    """The outputs whose classes the server itself is to find: those it has labels for, where it can and that is all we want.

    --save wants the scores themselves, and --labels brings other labels.
    """
    if not options.best or options.save or options.labels or facts.config is None:
        return ()
    if _EXTENSION not in facts.server.extensions:
        return ()
    wanted = options.outputs or tuple(one.name for one in facts.metadata.outputs)
    return wanted if wanted and all(name in facts.config.labels for name in wanted) else ()


def said_by_server(tensor: Tensor) -> Rows:
    """From `score:index:label` strings, row by row."""
    rows = to_numpy(tensor).reshape(-1, tensor.shape[-1] if tensor.shape else 1)
    return tuple(tuple(_class(tensor.name, element) for element in row) for row in rows)


def _class(name: str, element: bytes) -> ClassScore:
    score, _, rest = element.decode("utf-8", "replace").partition(":")
    index, _, label = rest.partition(":")
    try:
        return ClassScore(float(score), int(index), label)
    except ValueError:
        raise UserError(
            f"output {name}: {element!r:.60} is no class as Triton writes it (score:index:label)",
            "ask with --classes 0",
        ) from None


def found_here(tensor: Tensor, count: int, labels: Sequence[str] = ()) -> Rows:
    """The `count` best of each row, the best first; equal ones in the order of their index."""
    array = to_numpy(tensor)
    rows = array.reshape(1, -1) if array.ndim == 1 else array.reshape(array.shape[0], -1)
    best = []
    for row in rows.astype(np.float64):
        order = np.argsort(-np.nan_to_num(row, nan=-np.inf), kind="stable")[:count]
        best.append(tuple(ClassScore(float(row[i]), int(i), _label(labels, int(i))) for i in order))
    return tuple(best)


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if index < len(labels) else ""


def looks_like_scores(tensor: Tensor, options: InferFlags) -> bool:
    """One number a class and row: floats, more than one; and it was asked for, or it was an image that was asked about."""
    wished = options.image is not None or options.classes is not None or options.labels is not None
    long = [size for size in tensor.shape[1 if len(tensor.shape) > 1 else 0 :] if size != 1]
    is_row = len(long) == 1 and long[0] >= _FEWEST
    is_score = tensor.datatype in _FLOATS or (options.classes is not None and tensor.datatype not in _NO_SCORES)
    return bool(options.best) and wished and is_row and is_score


def read_labels(path: str | None) -> tuple[str, ...]:
    """One a line."""
    return tuple(files.read(path, "--labels").decode("utf-8", "replace").splitlines()) if path else ()
