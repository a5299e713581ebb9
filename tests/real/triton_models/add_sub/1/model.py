"""OUTPUT0 is INPUT0 + INPUT1, and OUTPUT1 is INPUT0 - INPUT1; only the requested ones are returned."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [respond(request) for request in requests]


def respond(request):
    left, right = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
    outputs = {"OUTPUT0": left + right, "OUTPUT1": left - right}
    requested = request.requested_output_names()
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, outputs[name]) for name in outputs if name in requested])
