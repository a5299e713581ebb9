"""The descriptor sets in the repository are those of the bundled .proto files, and packages contain them."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import inferometer
from inferometer.wire import protobuf

PROTO = Path(inferometer.__file__).parent / "proto"
ROOT = Path(__file__).parents[3]
PROTOS = sorted(path.stem for path in PROTO.glob("*.proto"))


def test_list_of_bundled_protos() -> None:
    assert PROTOS == ["health", "kserve", "model_config", "reflection", "reflection_v1alpha"]


@pytest.mark.parametrize("name", PROTOS)
def test_stored_set_equals_a_fresh_compile(name: str) -> None:
    pytest.importorskip("grpc_tools")
    stored = FileDescriptorSet.FromString((PROTO / f"{name}.binpb").read_bytes())
    fresh = FileDescriptorSet.FromString(protobuf.compile(PROTO / f"{name}.proto"))
    assert stored == fresh, "a .proto file changed: run make protos"


def test_both_versions_of_reflection_have_the_same_messages() -> None:
    name = "ServerReflection/ServerReflectionInfo"
    old = protobuf.bundled("reflection_v1alpha").method(f"grpc.reflection.v1alpha.{name}")
    new = protobuf.bundled("reflection").method(f"grpc.reflection.v1.{name}")
    assert old.path == f"/grpc.reflection.v1alpha.{name}"
    assert old.input.DESCRIPTOR.full_name == new.input.DESCRIPTOR.full_name
    assert old.client_streaming and old.server_streaming and new.client_streaming and new.server_streaming


def test_bytes_of_a_health_check() -> None:
    check = protobuf.bundled("health").method("grpc.health.v1.Health/Check")
    assert protobuf.encode(check.input, {"service": "a"}) == b"\x0a\x01a"
    assert protobuf.decode(check.output, b"\x08\x01") == {"status": "SERVING"}
    assert protobuf.bundled("health").method("grpc.health.v1.Health/Watch").server_streaming


def test_sdist_and_wheel_contain_the_sets(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    package = tmp_path / "src" / "inferometer"
    shutil.copytree(PROTO, package / "proto")
    shutil.copy(PROTO.parent / "__init__.py", package / "__init__.py")
    command = "from setuptools import build_meta as b; b.build_sdist('.'); b.build_wheel('.')"
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as source, zipfile.ZipFile(wheel) as installed:
        for names in (source.getnames(), installed.namelist()):
            assert sorted(Path(name).stem for name in names if name.endswith(".binpb")) == PROTOS
