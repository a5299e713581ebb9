"""The score of class k is the sum of the image's k-th 19 numbers."""

import triton_python_backend_utils as pb_utils

CLASSES, PART = 10, 19


class TritonPythonModel:
    def execute(self, requests):
        return [respond(pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()) for request in requests]


def respond(images):
    parts = images.reshape(len(images), -1)[:, : CLASSES * PART].reshape(len(images), CLASSES, PART)
    return pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", parts.sum(axis=2))])
