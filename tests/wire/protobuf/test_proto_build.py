"""The build makes a descriptor set of every bundled .proto file, and the package reports a copy that was not built."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import inferometer
from inferometer.errors import UserError
from inferometer.wire import protobuf
from inferometer.wire.protobuf import descriptors

PROTO = Path(inferometer.__file__).parent / "proto"
ROOT = Path(__file__).parents[3]
PROTOS = sorted(path.stem for path in PROTO.glob("*.proto"))


def test_list_of_bundled_protos() -> None:
    assert PROTOS == ["health", "kserve", "model_config", "reflection", "reflection_v1alpha"]


@pytest.mark.parametrize("name", PROTOS)
def test_installed_set_equals_a_fresh_compile(name: str) -> None:
    built = FileDescriptorSet.FromString((PROTO / f"{name}.binpb").read_bytes())
    fresh = FileDescriptorSet.FromString(protobuf.compile(PROTO / f"{name}.proto"))
    assert built == fresh, "a .proto file changed: run pip install -e ."


def test_both_versions_of_reflection_have_the_same_messages() -> None:
    name = "ServerReflection/ServerReflectionInfo"
    old = protobuf.bundled("reflection_v1alpha").method(f"grpc.reflection.v1alpha.{name}")
    new = protobuf.bundled("reflection").method(f"grpc.reflection.v1.{name}")
    assert old.path == f"/grpc.reflection.v1alpha.{name}"
    assert old.input.DESCRIPTOR.full_name == new.input.DESCRIPTOR.full_name
    assert old.client_streaming and old.server_streaming and new.client_streaming and new.server_streaming


def test_bytes_of_a_health_check() -> None:
    check = protobuf.bundled("health").method("grpc.health.v1.Health/Check")
    assert protobuf.to_bytes(check, {"service": "a"}) == b"\x0a\x01a"
    assert protobuf.to_json(check, b"\x08\x01") == {"status": "SERVING"}
    assert protobuf.bundled("health").method("grpc.health.v1.Health/Watch").server_streaming


def test_error_in_an_unbuilt_copy_says_how_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "BUNDLED", tmp_path)
    with pytest.raises(UserError, match=r"kserve.binpb is missing") as caught:
        protobuf.bundled.__wrapped__("kserve")
    assert caught.value.remedy == "run pip install -e ."


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The part of the repository that a build needs, without descriptor sets."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    package = tmp_path / "src" / "inferometer"
    shutil.copytree(ROOT / "src" / "inferometer" / "proto", package / "proto", ignore=shutil.ignore_patterns("*.binpb"))
    shutil.copy(ROOT / "src" / "inferometer" / "__init__.py", package / "__init__.py")
    return tmp_path


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "-q", "build", "--build-lib", "built"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_build_includes_the_sets_and_leaves_them_for_an_editable_install(copy: Path) -> None:
    done = build(copy)
    assert done.returncode == 0, done.stderr
    for folder in (copy / "built" / "inferometer" / "proto", copy / "src" / "inferometer" / "proto"):
        assert sorted(path.stem for path in folder.glob("*.binpb")) == PROTOS
        for path in folder.glob("*.binpb"):
            assert path.read_bytes() == protobuf.compile(PROTO / f"{path.stem}.proto"), path


def test_build_with_a_malformed_proto_fails_with_its_location(copy: Path) -> None:
    broken = copy / "src" / "inferometer" / "proto" / "health.proto"
    broken.write_text(broken.read_text(encoding="utf-8") + "message {", encoding="utf-8")
    done = build(copy)
    assert done.returncode != 0
    assert "health.proto:25:9: Expected message name." in done.stderr
