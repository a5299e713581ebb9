"""Finding models on disk, overriding their configuration, and what must not be reachable."""

from pathlib import Path

import pytest

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models import configs, repository
from inferometer.serve.models.configs import override
from inferometer.serve.models.repository import ModelSource, define, sources
from inferometer.serve.models.types import Loading


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def the_one(given: str | Path) -> Loading:
    ((source,), _) = sources(str(given))
    return define(source)


def refused(source: ModelSource) -> str:
    with pytest.raises(UserError) as raised:
        define(source)
    return str(raised.value)


# --- what is found ---------------------------------------------------------------------------------------------------


def test_each_folder_of_a_repository_is_a_model_served_in_its_newest_version(tmp_path: Path) -> None:
    put(tmp_path / "a/config.pbtxt", 'backend: "identity" max_batch_size: 4')
    for version in ("2", "10", "9", "x"):
        (tmp_path / "a" / version).mkdir()
    put(tmp_path / "b/1/model.onnx")
    put(tmp_path / "README.md")
    put(tmp_path / ".git/config.pbtxt")
    (tmp_path / "empty").mkdir()
    found, root = sources(str(tmp_path))
    assert ([source.name for source in found], root) == (["a", "b"], tmp_path)
    a, b = map(define, found)
    assert (a.name, a.version, a.backend, a.folder) == ("a", "10", "identity", tmp_path / "a/10")
    assert a.config.max_batch_size == 4
    assert (b.backend, b.file, b.version) == ("onnxruntime", tmp_path / "b/1/model.onnx", "1")


def test_a_version_policy_selects_versions(tmp_path: Path) -> None:
    put(tmp_path / "a/config.pbtxt", 'backend: "identity" version_policy { specific { versions: [ 1, 2 ] } }')
    for version in ("1", "2", "3"):
        (tmp_path / "a" / version).mkdir()
    assert the_one(tmp_path / "a").version == "2"
    put(tmp_path / "b/config.pbtxt", 'backend: "identity" version_policy { specific { versions: [ 7 ] } }')
    (tmp_path / "b/1").mkdir()
    assert "contains none of the versions [7] of its version_policy" in refused(ModelSource("b", tmp_path / "b"))


@pytest.mark.parametrize(
    ("name", "backend"),
    [("model.onnx", "onnxruntime"), ("net.pt", "torch"), ("net.pt2", "torch"), ("mine.py", "python")],
)
def test_a_single_model_file_can_be_served(tmp_path: Path, name: str, backend: str) -> None:
    definition = the_one(put(tmp_path / "net" / name))
    assert (definition.backend, definition.file, definition.version) == (backend, tmp_path / "net" / name, "1")
    assert definition.name == ("net" if name == "model.onnx" else Path(name).stem)


def test_a_model_file_in_a_version_folder_is_named_after_its_model(tmp_path: Path) -> None:
    assert the_one(put(tmp_path / "resnet/3/model.pt")).name == "resnet"


@pytest.mark.parametrize(
    ("files", "backend", "file"),
    [
        (["model.py"], "python", "model.py"),
        (["config.json", "model.safetensors"], "transformers", None),
        (["1/net.pt2"], "torch", "1/net.pt2"),
        (["1/config.json"], "transformers", None),
    ],
)
def test_the_backend_is_guessed_from_the_files(
    tmp_path: Path, files: list[str], backend: str, file: str | None
) -> None:
    for name in files:
        put(tmp_path / "m" / name)
    definition = the_one(tmp_path / "m")
    assert (definition.name, definition.backend) == ("m", backend)
    assert definition.file == (tmp_path / "m" / file if file else None)


def test_a_configuration_may_be_yaml_with_plain_parameters(tmp_path: Path) -> None:
    text = """
        backend: sim
        max_batch_size: 8
        input: [{name: X, data_type: TYPE_FP32, dims: [3]}]
        dynamic_batching: {max_queue_delay_microseconds: 500}
        parameters: {delay: 5ms, flag: true, built: 2026-01-31}
    """
    config = the_one(put(tmp_path / "m/config.yaml", text).parent).config
    assert (config.input[0].name, list(config.input[0].dims)) == ("X", [3])
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    found = {name: one.string_value for name, one in config.parameters.items()}
    assert found == {"delay": "5ms", "flag": "true", "built": "2026-01-31"}


def test_unknown_fields_of_a_configuration_are_ignored(tmp_path: Path) -> None:
    put(tmp_path / "m/config.pbtxt", 'backend: "identity" max_batch_size: 2 some_new_thing { a: 1 b: [ 2 ] }')
    assert the_one(tmp_path / "m").config.max_batch_size == 2


def test_labels_are_read_beside_the_configuration(tmp_path: Path) -> None:
    put(tmp_path / "m/config.pbtxt", 'backend: "identity" output [{ name: "Y", label_filename: "labels.txt" }]')
    put(tmp_path / "m/labels.txt", "cat\ndog\n")
    assert the_one(tmp_path / "m").labels == {"Y": ("cat", "dog")}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"m/config.pbtxt": "max_batch_size: many"}, "config.pbtxt: 1:17"),
        ({"m/config.yaml": "a: [1"}, "while parsing a flow sequence"),
        ({"m/config.yaml": "max_batch_size: many"}, "max_batch_size"),
        ({"m/config.pbtxt": 'backend: "tensorrt"'}, "unknown backend 'tensorrt'"),
        ({"m/config.pbtxt": "max_batch_size: 1"}, "cannot tell which backend this model needs"),
        ({"m/1/model.onnx": "", "m/config.pbtxt": 'default_model_filename: "net.onnx"'}, "'net.onnx' is not a file in"),
    ],
)
def test_errors_on_disk_are_explained(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        put(tmp_path / name, text)
    assert message in refused(ModelSource("m", tmp_path / "m"))


def test_an_unknown_model_is_refused_with_the_alternatives(tmp_path: Path) -> None:
    put(tmp_path / "weights.bin")
    for given, message in (
        (tmp_path / "not-there", "or one of classifier, identity"),
        (tmp_path, "neither a model nor a model repository"),
        (tmp_path / "weights.bin", "unknown kind of model file"),
    ):
        with pytest.raises(UserError) as raised:
            sources(str(given))
        assert message in str(raised.value)


# --- what cannot be reached ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "../secret", "a/b", "/etc", "a\\b", "a\0b", ".hidden"])
def test_a_name_is_a_single_path_component(name: str) -> None:
    assert not repository.is_name(name)


@pytest.mark.parametrize("name", ["../secret.txt", "../../etc/passwd", "{outside}/secret.txt"])
def test_labels_outside_the_model_are_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path / "secret.txt", "secret")
    label = name.format(outside=tmp_path)
    put(tmp_path / "m/config.pbtxt", f'backend: "identity" output [{{ name: "Y", label_filename: "{label}" }}]')
    assert "is not a file in" in refused(ModelSource("m", tmp_path / "m"))


def test_a_model_file_outside_the_version_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "m/1/model.onnx")
    put(tmp_path / "m/config.pbtxt", 'default_model_filename: "../../secret.onnx"')
    assert "'../../secret.onnx' is not a file in" in refused(ModelSource("m", tmp_path / "m"))


# --- overrides -------------------------------------------------------------------------------------------------------


def test_overrides_change_the_configuration() -> None:
    config = ModelConfig()
    for text in (
        "max_batch_size=8",
        "dynamic_batching.max_queue_delay_microseconds=500",
        "dynamic_batching.preferred_batch_size=2,4",
        "instance_group.count=2",
        "instance_group.kind=KIND_CPU",
        "parameters.delay=5ms",
        "parameters.a.b=x=y",
        "model_transaction_policy.decoupled=true",
    ):
        override(config, text)
    assert config.max_batch_size == 8
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 4]
    assert [(group.count, group.kind) for group in config.instance_group] == [(2, 2)]
    assert {name: value.string_value for name, value in config.parameters.items()} == {"delay": "5ms", "a.b": "x=y"}
    assert config.model_transaction_policy.decoupled


def test_an_override_applies_to_every_instance_group() -> None:
    config = configs.from_pbtxt("instance_group [{ count: 1 }, { count: 1 }]")
    override(config, "instance_group.count=3")
    assert [group.count for group in config.instance_group] == [3, 3]


def test_an_empty_value_enables_a_message() -> None:
    config = ModelConfig()
    override(config, "dynamic_batching={}")
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size", "has no value"),
        ("=3", "has no value"),
        ("max_batch=3", "did you mean max_batch_size"),
        ("max_batch_size=many", "'max_batch_size: many': Couldn't parse integer: many"),
        ("max_batch_size=99999999999", "Value out of range: 99999999999"),
        ("max_batch_size.x=1", "max_batch_size has no fields that can be set"),
        ("metric_tags.a=b", "metric_tags has no fields that can be set"),
        ("dynamic_batching=500", "'dynamic_batching: 500': Expected"),
        ("dynamic_batching.max_queue_delay=5", "did you mean max_queue_delay_microseconds"),
        ("dynamic_batching.max_queue_delay_microseconds=-1", "Value out of range: -1"),
        ("instance_group=2", "'instance_group: [2]': Expected"),
        ("instance_group.kind=GPU", "has no value named GPU"),
        ("parameters=5", "'parameters: [5]': Expected"),
        ("model_transaction_policy.decoupled=maybe", "decoupled"),
    ],
)
def test_invalid_overrides_are_explained(text: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        override(ModelConfig(), text)
    assert message in str(raised.value)


# --- what follows from it --------------------------------------------------------------------------------------------


def test_instances_run_on_the_devices_of_their_groups() -> None:
    def devices(text: str) -> list[str]:
        return configs.devices(configs.from_pbtxt(text), "auto")

    assert devices("") == ["auto"]
    assert devices("instance_group [{ count: 2 }]") == ["auto", "auto"]
    assert devices("instance_group [{ kind: KIND_CPU }, { kind: KIND_GPU, gpus: [ 0, 1 ], count: 2 }]") == [
        "cpu", "cuda:0", "cuda:0", "cuda:1", "cuda:1",
    ]  # fmt: skip
    assert devices("instance_group [{ kind: KIND_GPU }]") == ["cuda"]


def test_batching_must_be_configured() -> None:
    def policy(text: str) -> tuple[bool, int, int, int]:
        made = configs.policy(configs.from_pbtxt(text))
        return made.batching, made.max_rows, made.delay_ns, made.limit

    assert policy("max_batch_size: 8") == (False, 1, 0, 0)
    assert policy("max_batch_size: 8 dynamic_batching { }") == (True, 8, 0, 0)
    assert policy("dynamic_batching { }") == (False, 1, 0, 0)
    assert policy("max_batch_size: 8 dynamic_batching { } model_transaction_policy { decoupled: true }")[0] is False
    assert policy(
        "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5 default_queue_policy { max_queue_size: 7 } }"
    ) == (True, 8, 5000, 7)
    assert policy('parameters { key: "max_queue_size" value { string_value: "3" } }') == (False, 1, 0, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sequence_batching { }", "sequence_batching is not supported"),
        ("ensemble_scheduling { }", "ensemble_scheduling is not supported"),
        ("max_batch_size: -1", "max_batch_size must be at least 0 \\(got -1\\)"),
        ("instance_group [{ count: -1 }]", "instance_group.count must be at least 0 \\(got -1\\)"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 16 ] }", "which is 8 \\(got 16\\)"),
        ('parameters { key: "max_queue_size" value { string_value: "-1" } }', "at least 0 \\(got '-1'\\)"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(text: str, message: str) -> None:
    tensor = '[{ name: "X", data_type: TYPE_FP32, dims: [ 1 ] }]'
    config = configs.from_pbtxt(f"input {tensor} output {tensor} {text}")
    with pytest.raises(UserError, match=message):
        configs.policy(config)
        configs.specs(config)
        configs.devices(config, "cpu")
