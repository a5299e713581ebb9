"""The server of these tests: the simulator, and models that return their inputs, over HTTP and gRPC."""

from collections.abc import Iterator

import pytest

from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim
from inferometer.tensors import DATATYPES

ALL_TYPES = 'backend: "identity" max_batch_size: 0\n' + "".join(
    f'input {{ name: "{name}" data_type: TYPE_{name if name != "BYTES" else "STRING"} dims: [-1] optional: true }}\n'
    f'output {{ name: "{name}" data_type: TYPE_{name if name != "BYTES" else "STRING"} dims: [-1] }}\n'
    for name in DATATYPES
)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("models") / "all_types"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(ALL_TYPES, encoding="utf-8")
    quick = Sim(timing=Fixed(ttft=0.005, itl=0.001))
    with serving(Settings(models=("identity", str(folder)), sim=quick, http=0, grpc=0)) as running:
        yield running
