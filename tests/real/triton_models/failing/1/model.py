"""A Triton error code's name (INVALID_ARG, UNAVAILABLE, ...) returns an error with that code, RAISE raises; anything else is returned."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [respond(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()) for request in requests]


def respond(given):
    word = given[0].decode()
    if word == "RAISE":
        raise ValueError("told to raise")
    if word.isupper():
        error = pb_utils.TritonError(f"told to fail with {word}", getattr(pb_utils.TritonError, word))
        return pb_utils.InferenceResponse(error=error)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)])
