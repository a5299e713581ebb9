"""SUM is the sum of the sequence's numbers since its start, and SEQUENCE its id."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        value, start, end, ready, sequence = (
            int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0])
            for name in ("INPUT", "START", "END", "READY", "CORRID")
        )
        total = value + (0 if start else self.sums.get(sequence, 0))
        if ready:
            self.sums[sequence] = total
        if ready and end:
            del self.sums[sequence]
        outputs = {"SUM": np.array([[total]], np.int32), "SEQUENCE": np.array([[sequence]], np.uint64)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
