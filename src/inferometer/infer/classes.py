"""The top classes of a classifier's response, with their labels if there are any.

Triton can find them itself (its classification extension) and knows the labels: an output's elements are then strings,
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
_NOT_SCORES = ("BYTES", "BOOL")
_MIN_CLASSES = 2

Rows = tuple[tuple[ClassScore, ...], ...]


def classified_by_server(options: InferFlags, facts: ModelFacts) -> tuple[str, ...]:
    """The outputs whose classes the server is to find: those it has labels for, if it can and the classes are all that is needed.

    --save needs the scores themselves, and --labels brings other labels.
    """
    if not options.top_classes or options.save or options.labels or facts.config is None:
        return ()
    if _EXTENSION not in facts.server.extensions:
        return ()
    wanted = options.outputs or tuple(output.name for output in facts.metadata.outputs)
    return wanted if wanted and all(name in facts.config.labels for name in wanted) else ()


def from_server(tensor: Tensor) -> Rows:
    """Parse the server's `score:index:label` strings, row by row."""
    rows = to_numpy(tensor).reshape(-1, tensor.shape[-1] if tensor.shape else 1)
    return tuple(tuple(_class(tensor.name, element) for element in row) for row in rows)


def _class(name: str, element: bytes) -> ClassScore:
    score, _, rest = element.decode("utf-8", "replace").partition(":")
    index, _, label = rest.partition(":")
    try:
        return ClassScore(float(score), int(index), label)
    except ValueError:
        raise UserError(
            f"output {name}: {element!r:.60} is not a class in Triton's format (score:index:label)",
            "use --classes 0",
        ) from None


def from_scores(tensor: Tensor, count: int, labels: Sequence[str] = ()) -> Rows:
    """The `count` highest scores of each row, the highest first; equal ones in the order of their index."""
    array = to_numpy(tensor)
    rows = array.reshape(1, -1) if array.ndim == 1 else array.reshape(array.shape[0], -1)
    top = []
    for row in rows.astype(np.float64):
        order = np.argsort(-np.nan_to_num(row, nan=-np.inf), kind="stable")[:count]
        top.append(tuple(ClassScore(float(row[i]), int(i), _label(labels, int(i))) for i in order))
    return tuple(top)


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if index < len(labels) else ""


def looks_like_scores(tensor: Tensor, options: InferFlags) -> bool:
    """Whether an output has one score per class and row: more than one float, and classes or an image were given."""
    wanted = bool(options.images) or options.classes is not None or options.labels is not None
    long = [size for size in tensor.shape[1 if len(tensor.shape) > 1 else 0 :] if size != 1]
    is_row = len(long) == 1 and long[0] >= _MIN_CLASSES
    is_score = tensor.datatype in _FLOATS or (options.classes is not None and tensor.datatype not in _NOT_SCORES)
    return bool(options.top_classes) and wanted and is_row and is_score


def read_labels(path: str | None) -> tuple[str, ...]:
    """The labels in a file, one per line."""
    return tuple(files.read(path, "--labels").decode("utf-8", "replace").splitlines()) if path else ()
