"""`inferometer.Client` against a real Triton: the same arrays as tritonclient gets, over HTTP and gRPC."""

import numpy as np
import pytest
from triton_server import NUMPY, Oracle, Triton, tensor, values

import inferometer
from inferometer.tensors import from_numpy

pytestmark = pytest.mark.triton
pytest_plugins = ["triton_server"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_arrays_are_those_that_tritonclient_gets(triton: Triton, oracle: Oracle, protocol: str) -> None:
    url = triton.http if protocol == "http" else triton.grpc
    random = np.random.default_rng(5)
    arrays = {name: random.integers(0, 2 if name == "BOOL" else 100, 7).astype(kind) for name, kind in NUMPY.items()}
    arrays["BF16"] = random.integers(-50, 50, 7).astype(np.float32)
    arrays["BYTES"] = np.array([b"one", b"", b"\x00\xff"], object)
    given = [
        tensor(f"IN_{name}", name, array.shape, bytes(from_numpy(name, array, name).data))
        for name, array in arrays.items()
    ]
    expected = oracle(url, model="all_types", protocol=protocol, inputs=given)
    assert "error" not in expected, expected
    with inferometer.Client(url) as client:
        found = client.infer("all_types", {f"IN_{name}": array for name, array in arrays.items()})
        assert client.ready("all_types") and not client.ready("nothing")
        assert client.config("all_types")["name"] == client.metadata("all_types")["name"] == "all_types"
        with pytest.raises(inferometer.Error, match="nothing"):
            client.infer("nothing", {"X": [1.0]})
    assert found.keys() == {one["name"] for one in expected["outputs"]}
    for name, array in arrays.items():
        ours = found[f"OUT_{name}"]
        np.testing.assert_array_equal(ours, array)
        raw = bytes(from_numpy(name, ours, name).data)
        assert values({"outputs": [tensor(name, name, ours.shape, raw)]}, name) == values(expected, f"OUT_{name}")
