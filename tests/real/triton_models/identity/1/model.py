"""OUTPUT0 is INPUT0."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [respond(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]


def respond(given):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given.as_numpy())])
