"""Sleeps for DELAY_MS and returns it."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [respond(pb_utils.get_input_tensor_by_name(request, "DELAY_MS").as_numpy()) for request in requests]


def respond(delay):
    time.sleep(int(delay[0]) / 1000)
    return pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT_MS", delay)])
