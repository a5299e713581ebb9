"""OUTPUT0 is INPUT0 + INPUT1, and OUTPUT1 is INPUT0 - INPUT1; only those that are asked for are given."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    left, right = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
    outputs = {"OUTPUT0": left + right, "OUTPUT1": left - right}
    asked = request.requested_output_names()
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, outputs[name]) for name in outputs if name in asked])
