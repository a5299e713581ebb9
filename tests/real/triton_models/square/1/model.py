"""The responses to N are the squares of 0, 1, ... N - 1, in this order."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0]):
                square = np.array([number * number], np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SQUARE", square)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
