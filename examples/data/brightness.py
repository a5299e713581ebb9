"""A model for examples/data/images.yaml: takes an image of 224 x 224 pixels and returns the mean of each channel."""

from typing import Any

import numpy as np

CONFIG = {
    "max_batch_size": 8,
    "input": [{"name": "IMAGE", "data_type": "TYPE_FP32", "dims": [3, 224, 224]}],
    "output": [{"name": "MEANS", "data_type": "TYPE_FP32", "dims": [3]}],
}


def infer(inputs: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    return {"MEANS": inputs["IMAGE"].mean(axis=(2, 3), dtype=np.float32)}
