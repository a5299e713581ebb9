"""Descriptor sets, look-up of methods and messages by name, and compilation of .proto files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from inferometer.errors import UserError
from inferometer.wire import protobuf

SERVICE = """
syntax = "proto3";
package shop;
import "parts/item.proto";
import "google/protobuf/timestamp.proto";
service Till {
  rpc Pay(Basket) returns (Receipt);
  rpc Watch(Basket) returns (stream Receipt);
  rpc Scan(stream parts.Item) returns (Receipt);
  rpc Talk(stream parts.Item) returns (stream Receipt);
}
message Basket { repeated parts.Item items = 1; message Note { string text = 1; } Note note = 2; }
message Receipt { int64 cents = 1; google.protobuf.Timestamp at = 2; }
"""
ITEM = 'syntax = "proto3"; package parts; message Item { string name = 1; }'


@pytest.fixture
def proto(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "item.proto").write_text(ITEM)
    path = tmp_path / "shop.proto"
    path.write_text(SERVICE)
    return path


def file_set(*files: descriptor_pb2.FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def named(name: str, *imports: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(name=name, dependency=imports, syntax="proto3")


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shop.Till/Pay", "/shop.Till/Pay", "shop.Till.Pay"])
def test_method_is_found_by_every_form_of_its_name(proto: Path, name: str) -> None:
    method = protobuf.load(proto).method(name)
    assert method.path == "/shop.Till/Pay"
    assert method.input.DESCRIPTOR.full_name == "shop.Basket"
    assert method.output.DESCRIPTOR.full_name == "shop.Receipt"


@pytest.mark.parametrize(
    ("name", "client", "server"),
    [("Pay", False, False), ("Watch", False, True), ("Scan", True, False), ("Talk", True, True)],
)
def test_method_knows_which_side_streams(proto: Path, name: str, client: bool, server: bool) -> None:
    method = protobuf.load(proto).method(f"shop.Till/{name}")
    assert (method.client_streaming, method.server_streaming) == (client, server)


def test_all_methods_and_messages_are_listed_including_nested_and_imported(proto: Path) -> None:
    schema = protobuf.load(proto)
    assert schema.methods == ["shop.Till/Pay", "shop.Till/Scan", "shop.Till/Talk", "shop.Till/Watch"]
    assert {"shop.Basket", "shop.Basket.Note", "parts.Item", "google.protobuf.Timestamp"} <= set(schema.messages)
    assert schema.message("shop.Basket.Note")(text="x").SerializeToString() == b"\x0a\x01x"


@pytest.mark.parametrize(
    "wrong", ["shop.Till/pay", "Pay", "Till/Pay", "/shop.till/Pay", "shop.Till/Payy", "", "/", "."]
)
def test_error_for_an_unknown_method_suggests_similar_ones(proto: Path, wrong: str) -> None:
    with pytest.raises(UserError) as caught:
        protobuf.load(proto).method(wrong)
    assert repr(wrong) in caught.value.what
    assert "shop.Till/Pay" in caught.value.remedy


def test_error_for_a_name_without_similar_ones_lists_a_few_known_names() -> None:
    with pytest.raises(UserError) as caught:
        protobuf.bundled("kserve").method("zzz")
    assert "inference.GRPCInferenceService/ModelInfer" in caught.value.remedy
    assert caught.value.remedy.endswith("and 12 more")


def test_error_for_an_unknown_message_suggests_the_most_similar() -> None:
    with pytest.raises(UserError, match=r"inference\.ModelInferRequest"):
        protobuf.bundled("kserve").message("inference.ModelInferReqest")


def test_error_for_a_set_without_services() -> None:
    with pytest.raises(UserError, match="do not contain any method"):
        protobuf.load(file_set(named("empty.proto"))).method("a.B/C")


# --- descriptor sets -------------------------------------------------------------------------------------------------


def test_set_can_be_loaded_from_bytes_or_a_file(proto: Path, tmp_path: Path) -> None:
    data = protobuf.compile(proto)
    path = tmp_path / "set.binpb"
    path.write_bytes(data)
    assert protobuf.load(data).methods == protobuf.load(path).methods == protobuf.load(str(path)).methods
    assert protobuf.load(data, path).methods, "the same set twice is the same set"


def test_files_may_be_in_any_order(proto: Path) -> None:
    files = list(descriptor_pb2.FileDescriptorSet.FromString(protobuf.compile(proto)).file)
    assert protobuf.load(file_set(*reversed(files))).methods == protobuf.load(file_set(*files)).methods


def test_well_known_imports_may_be_missing_from_a_set(proto: Path) -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(protobuf.compile(proto)).file
    without = [file for file in files if not file.name.startswith("google/protobuf/")]
    assert len(without) < len(files)
    method = protobuf.load(file_set(*without)).method("shop.Till/Pay")
    assert protobuf.decode(method.output, protobuf.encode(method.output, {"at": "2020-01-01T00:00:00Z"})) == {
        "at": "2020-01-01T00:00:00Z"
    }


@pytest.mark.parametrize("name", ["lost.proto", "google/protobuf/no_such.proto"])
def test_missing_import_is_named(name: str) -> None:
    with pytest.raises(UserError, match=rf"main.proto but not {name}") as caught:
        protobuf.load(file_set(named("main.proto", name)))
    assert "--include_imports" in caught.value.remedy


def test_circular_imports_are_an_error_and_not_a_hang() -> None:
    with pytest.raises(UserError, match="imports itself"):
        protobuf.load(file_set(named("a.proto", "b.proto"), named("b.proto", "a.proto")))


def test_file_that_imports_itself_is_an_error() -> None:
    with pytest.raises(UserError, match="imports itself"):
        protobuf.load(file_set(named("a.proto", "a.proto")))


def test_long_chain_of_imports_needs_no_recursion() -> None:
    files = [named(f"{i}.proto", f"{i + 1}.proto") for i in range(3000)]
    protobuf.load(file_set(*files, named("3000.proto")))


def test_two_different_files_with_one_name_are_an_error() -> None:
    other = named("a.proto")
    other.package = "other"
    with pytest.raises(UserError, match=r"different files named a\.proto"):
        protobuf.load(file_set(named("a.proto")), file_set(other))


def test_set_that_defines_a_name_twice_is_an_error() -> None:
    one, two = named("a.proto"), named("b.proto")
    one.message_type.add(name="M")
    two.message_type.add(name="M")
    with pytest.raises(UserError, match=r"b.proto: .*M"):
        protobuf.load(file_set(one, two))


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"hello", b'{"a": 1}', b"\x0a\x00"])
def test_bytes_that_are_not_a_descriptor_set_are_rejected(data: bytes) -> None:
    with pytest.raises(UserError, match="not a descriptor set"):
        protobuf.load(data)


def test_missing_set_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.binpb cannot be read: No such file"):
        protobuf.load(tmp_path / "nowhere.binpb")


# --- beside other people's modules -----------------------------------------------------------------------------------

CLASH = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
theirs = descriptor_pb2.FileDescriptorProto(name="kserve.proto", package="inference", syntax="proto3")
theirs.message_type.add(name="ModelInferRequest").field.add(name="other", number=9, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(theirs.SerializeToString())

from inferometer.wire import protobuf
ours = protobuf.bundled("kserve").message("inference.ModelInferRequest")
again = protobuf.load(protobuf.BUNDLED / "kserve.binpb").message("inference.ModelInferRequest")
mine = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest"))
assert ours(model_name="m").SerializeToString() == again(model_name="m").SerializeToString() == b"\\n\\x01m"
assert mine(other=1).SerializeToString() == b"\\x48\\x01"
assert not hasattr(mine(), "model_name") and not hasattr(ours(), "other")
"""


def test_schema_coexists_with_a_generated_module_of_the_same_names() -> None:
    done = subprocess.run([sys.executable, "-c", CLASH], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_default_pool_is_not_modified(proto: Path) -> None:
    protobuf.load(proto)
    for name in ("shop.Basket", "parts.Item"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)


# --- .proto files ----------------------------------------------------------------------------------------------------


def test_import_is_found_in_an_include_folder(tmp_path: Path) -> None:
    (tmp_path / "lib" / "parts").mkdir(parents=True)
    (tmp_path / "lib" / "parts" / "item.proto").write_text(ITEM)
    (tmp_path / "shop.proto").write_text(SERVICE)
    schema = protobuf.load(tmp_path / "shop.proto", include=[tmp_path / "lib"])
    assert "parts.Item" in schema.messages


def test_file_in_an_include_folder_is_named_relative_to_it(proto: Path) -> None:
    data = protobuf.compile(proto.parent / "parts" / "item.proto", [proto.parent])
    assert [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(data).file] == ["parts/item.proto"]


def test_compiling_is_deterministic_and_has_no_source_info(proto: Path) -> None:
    data = protobuf.compile(proto)
    assert data == protobuf.compile(str(proto))
    assert not any(f.HasField("source_code_info") for f in descriptor_pb2.FileDescriptorSet.FromString(data).file)


def test_relative_path_is_accepted(proto: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(proto.parent)
    assert protobuf.load("shop.proto").methods


def test_missing_import_is_reported_with_file_line_and_remedy(proto: Path) -> None:
    (proto.parent / "parts" / "item.proto").unlink()
    with pytest.raises(UserError) as caught:
        protobuf.compile(proto)
    assert "parts/item.proto: File not found" in caught.value.what
    assert "shop.proto:4:1" in caught.value.what
    assert "folder" in caught.value.remedy


def test_syntax_error_is_reported_with_file_and_line_and_not_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.proto"
    path.write_text('syntax = "proto3";\nmessage A {\n  int32 b = 1\n}\n')
    with pytest.raises(UserError, match=r'bad.proto:4:1: Expected ";"'):
        protobuf.compile(path)
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_warning_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "unused.proto").write_text('syntax = "proto3";')
    (tmp_path / "a.proto").write_text('syntax = "proto3"; import "unused.proto"; message A {}')
    assert protobuf.load(tmp_path / "a.proto").messages == ["A"]


def test_missing_proto_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.proto: there is no such file"):
        protobuf.compile(tmp_path / "nowhere.proto")


def test_missing_compiler_names_the_extra_to_install(proto: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(UserError, match=r"pip install 'inferometer\[proto\]'"):
        protobuf.load(proto)
