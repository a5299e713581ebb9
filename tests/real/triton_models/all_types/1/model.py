"""OUT_TYPE is IN_TYPE, for each one that is given. BF16, which numpy lacks, is passed with DLPack."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([copy(given) for given in request.inputs()]) for request in requests]


def copy(given):
    name = given.name().replace("IN_", "OUT_")
    if name == "OUT_BF16":
        return pb_utils.Tensor.from_dlpack(name, given.to_dlpack())
    return pb_utils.Tensor(name, given.as_numpy())
