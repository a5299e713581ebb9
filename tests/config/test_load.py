"""From YAML and overrides to a Config, or to an error that names the key and the remedy."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inferometer import schedule
from inferometer.config import Config, from_mapping, read_tree
from inferometer.config.data import Jsonl, Prompts
from inferometer.config.loads import Bursts, Closed, Constant, Poisson, Stages
from inferometer.errors import UserError
from inferometer.units import format_bytes, format_number, format_seconds, parse_bytes, parse_seconds

SERVER = {"server": {"url": "http://127.0.0.1:8000"}}


def config(*overrides: str, **sections: Any) -> Config:
    return from_mapping(SERVER | sections, overrides)


def error(*overrides: str, **sections: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        config(*overrides, **sections)
    assert "\n" not in caught.value.line + caught.value.next_step
    assert caught.value.next_step
    return caught.value


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "bench.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


# --- what is right ---------------------------------------------------------------------------------------------------


def test_files_and_overrides(tmp_path: Path) -> None:
    text = """
    server: {url: "http://127.0.0.1:8000", model: my-model, api: completions, stream: true}
    data:   {type: synthetic, input: 64, output: 100}
    load:   {type: closed, concurrency: 256, requests: 2560}
    """
    found = from_mapping(read_tree(write(tmp_path, text)))
    assert found.server.model == "my-model"
    assert isinstance(found.load, Closed)
    assert (found.load.concurrency, found.load.requests) == (256, 2560)
    other = from_mapping(read_tree(write(tmp_path, text)), ["load={type: poisson, rate: 500, duration: 10s}"])
    assert isinstance(other.load, Poisson)
    assert (other.load.rate, other.load.duration) == (500, 10)


def test_on_and_off_are_keys_although_yaml_reads_them_as_booleans(tmp_path: Path) -> None:
    path = write(tmp_path, "server: {url: http://x}\nload: {type: bursts, rate: 5, on: 1s, off: 2s, duration: 9s}")
    load = from_mapping(read_tree(path)).load
    assert isinstance(load, Bursts)
    assert (load.on, load.off) == (1, 2)


def test_on_and_off_are_keys_in_overrides() -> None:
    load = config("load={type: bursts, rate: 5, on: 1s, off: 2s, duration: 9s}").load
    assert isinstance(load, Bursts)


def test_numbers_as_keys_stay_numbers() -> None:
    assert config(server={"url": "http://x", "body": {"logit_bias": {0: -1, 1: 2}}}).server.body == {
        "logit_bias": {"0": -1, "1": 2}
    }


@pytest.mark.parametrize(
    ("section", "tree", "kind"),
    [
        ("load", {"rate": 5, "duration": 1}, Poisson),
        ("load", {"concurrency": 5, "requests": 1}, Closed),
        ("load", {"stages": [{"type": "constant", "rate": 1, "requests": 1}]}, Stages),
        ("data", {"prompts": ["hi"]}, Prompts),
        ("data", {"path": "x.jsonl"}, Jsonl),
    ],
)
def test_a_type_may_be_left_out_if_another_key_implies_it(section: str, tree: dict[str, Any], kind: type) -> None:
    assert isinstance(getattr(config(**{section: tree}), section), kind)


def test_overrides_reach_into_sections_and_lists_and_are_read_as_yaml() -> None:
    found = config(
        "load.stages.1.rate=50", "server.headers.x-a=b", "server.tls.verify=false", "measure.warmup=5s",
        load={"stages": [{"type": "constant", "rate": 1, "requests": 1}] * 2},
    )  # fmt: skip
    assert isinstance(found.load, Stages)
    assert [stage.rate for stage in found.load.stages if isinstance(stage, Constant)] == [1, 50]
    assert found.server.headers == {"x-a": "b"}
    assert found.server.tls.verify is False


def test_overrides_reach_into_a_section_that_the_file_leaves_empty() -> None:
    assert config("load.rate=5", "load.duration=3s", load=None).load.duration == 3


def test_the_given_tree_is_not_changed() -> None:
    tree: dict[str, Any] = {"server": {"url": "http://x"}, "load": {"rate": 1, "duration": 1}}
    from_mapping(tree, ["load.rate=9"])
    assert tree == {"server": {"url": "http://x"}, "load": {"rate": 1, "duration": 1}}


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "what", "remedy"),
    [
        ({"lod": {}}, "lod: unknown key", "did you mean load?"),
        ({"rate": 5}, "rate: unknown key", "did you mean load.rate?"),
        ({"load": {"input": 5}}, "load.input: unknown key", "did you mean data.input?"),
        ({"load": {"type": "poisson", "rat": 5}}, "load.rat: unknown key", "did you mean load.rate?"),
        ({"load": {"rat": 5}}, "load.rat: unknown key", "did you mean load.rate? it is a key of load.type: constant, poisson"),
        ({"load": {"type": "closed", "rate": 5}}, "load.rate: unknown key", "it is a key of load.type: constant, poisson"),
        ({"load": {"type": "closed", "concurency": 5}}, "load.concurency", "did you mean load.concurrency?"),
        ({"server": {"url": "http://x", "modle": "m"}}, "server.modle", "did you mean server.model?"),
        ({"server": {"url": "http://x", "tls": {"verfy": 0}}}, "server.tls.verfy", "server.tls.verify"),
        ({"data": {"type": "synthetic", "xyz": 5}}, "data.xyz", "chat_template, corpus, correlation, input, lengths, output, prompt_as, salt, tokenizer"),
        ({"load": {"type": "poison", "rate": 5}}, "there is no 'poison'", "did you mean poisson?"),
        ({"data": {"type": "shargpt"}}, "there is no 'shargpt'", "did you mean sharegpt?"),
        ({"server": {"url": "http://x", "api": "chta"}}, "there is no 'chta'", "chat | completions"),
        ({"server": {"url": "http://x", "version": 2}}, "server.version: must be text, got 2", "quote it"),
        ({"load": {"type": "poisson", "rate": 0, "duration": 1}}, "load.rate: must be more than 0, got 0", "docs"),
        ({"load": {"type": "poisson", "rate": -1, "duration": 1}}, "load.rate", "docs"),
        ({"load": {"type": "poisson", "rate": float("nan"), "duration": 1}}, "load.rate", "docs"),
        ({"load": {"type": "poisson", "rate": "fast", "duration": 1}}, "load.rate: 'fast' is not a formula: there is no 'fast'", "a formula of t"),
        ({"load": {"type": "poisson", "duration": 1}}, "load.rate: missing", "add it"),
        ({"load": {"type": "closed", "concurrency": 1.5}}, "load.concurrency: must be a whole number, got 1.5", "docs"),
        ({"load": {"type": "closed", "concurrency": 0}}, "load.concurrency: must be at least 1, got 0", "docs"),
        ({"load": {"type": "poisson", "rate": 5}}, "load: never ends", "load.duration"),
        ({"load": {"type": "closed", "duration": 0}}, "load: never ends", "load.requests"),
        ({"load": {"type": "poisson", "rate": 5, "duration": "10x"}}, "load.duration: expected a duration", "docs"),
        ({"load": {"type": "poisson", "rate": 5, "duration": "1e999s"}}, "load.duration", "docs"),
        ({"load": {"type": "poisson", "rate": 5, "duration": 10**400}}, "load.duration", "docs"),
        ({"load": {"type": "ramp", "end": 5, "requests": 5}}, "load.duration: missing", "rate changes"),
        ({"load": {"type": "bursts", "rate": 5, "on": 0, "off": 1, "duration": 3}}, "load.on: must be more than 0", "length of a burst"),
        ({"load": {"stages": []}}, "load.stages", "docs"),
        ({"load": {"stages": [{"type": "constant", "rate": 0, "requests": 1}]}}, "load.stages.0.rate", "docs"),
        ({"load": {"stages": [{"type": "constant", "rte": 1}]}}, "load.stages.0.rte", "did you mean"),
        ({"load": 5}, "load: must be a section, got 5", "docs"),
        ({"data": [1]}, "data: must be a section, got [1]", "docs"),
        ({"server": "http://x"}, "server: must be a section", "docs"),
        ({"server": {"url": []}}, "server.url: the list is empty", "base URL"),
        ({"server": {}}, "server.url: missing", "add it"),
        ({"server": {"url": "grpc://x", "api": "chat"}}, "server.api: chat is not available over gRPC", "http://"),
        ({"server": {"url": "http://x", "api": "grpc", "method": "a.B/C"}}, "server.api: grpc needs a grpc:// URL", "grpc://HOST"),
        ({"server": {"url": "grpc://x", "api": "grpc"}, "data": {"messages": [{}]}}, "server.method: missing", "Service/Method"),
        ({"server": {"url": ["grpc://x", "http://x"]}}, "mixes gRPC and HTTP", "one protocol"),
        ({"server": {"url": "http://x", "api": "kserve", "stream": True}}, "server.stream: kserve cannot be streamed over HTTP", "grpc://"),
        ({"server": {"url": "grpc://x"}, "data": {"type": "synthetic"}}, "data.type: synthetic does not go with kserve", "tensors"),
        ({"server": {"url": "http://x", "api": "chat"}, "data": {"type": "tensors"}}, "tensors does not go with chat", "server.api: kserve for a tensor server, or data.type: synthetic"),
        ({"server": {"url": "http://x"}, "data": {"messages": [{}]}}, "messages does not go with chat", "grpc:// URL"),
        ({"server": {"url": "grpc://x"}, "data": {"sequence": 5}, "load": {"rate": 5, "duration": 1}}, "data.sequence: each request of a sequence waits for the previous response", "closed"),
        ({"server": {"url": "grpc://x"}, "data": {"sequence": 5}, "load": {"concurrency": 4, "requests": 15}}, "less than one sequence of 5 per user", "20 or more"),
        ({"server": {"url": "grpc://x"}, "data": {"sequence": 5}, "load": {"concurrency": 4, "requests": 22}}, "load.requests: 22 is not a multiple of the sequence length 5", "a multiple of 5"),
        ({"server": {"url": "grpc://x", "api": "grpc", "method": "a.B/C"}}, "data: needs either messages or path", "file"),
        ({"measure": {"warmup": "soon"}}, "measure.warmup: expected a count of requests, a duration", "docs"),
        ({"seed": -1}, "seed: must be at least 0, got -1", "docs"),
        ({"client": {"processes": -1}}, "client.processes", "docs"),
        ({"client": {"connections": -1}}, "client.connections", "docs"),
        ({"client": {"processes": "many"}}, "client.processes", "auto"),
    ],
)  # fmt: skip
def test_errors_name_the_key_and_suggest_the_nearest_valid_one(
    sections: dict[str, Any], what: str, remedy: str
) -> None:
    found = error(**sections)
    assert what in found.line
    assert remedy in found.next_step


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("load.rate", "not of the form key=value"),
        ("=5", "not of the form key=value"),
        ("load.rate=[1", "the value is not YAML"),
        ("load.rate=2001-99-99", "the value is not YAML"),
        ("load.stages.0.rate=5", "load.stages: must be a list"),
        ("seed.x=5", "seed is a single value"),
        ("server.url.3=x", "single value"),
        ("lode.rate=5", "lode: unknown key"),
    ],
)
def test_invalid_overrides(override: str, what: str) -> None:
    assert what in error(override, seed=1).line


@pytest.mark.parametrize(
    ("overrides", "what", "remedy"),
    [
        (["data.shape=5"], "data.shape: must be a section, got 5", "docs"),
        (["data.shape.A=5"], "data.shape.A: must be a list, got 5", "--set 'data.shape.A=[5]'"),
        (["data.shape.A=[1]", "data.shape.B=x", "data.shape.C=5"], "data.shape.B: must be a list, got 'x'", "docs"),
        (["data.shape.A=[1, b]"], "data.shape.A.1: must be a whole number or a section, got 'b'", "docs"),
        (["server.parameters.a=1", "server.parameters.b=[]"], "server.parameters.b: must be true or false or", "docs"),
        (["server.headers.a=b", "server.headers.X-Own=5"], "server.headers.X-Own: must be text", "quote it: server.headers.X-Own"),
    ],
)  # fmt: skip
def test_a_wrong_entry_of_a_mapping_is_named(overrides: list[str], what: str, remedy: str) -> None:
    found = error(*overrides, server={"url": "grpc://x"})
    assert what in found.line
    assert remedy in found.next_step


def test_secrets_are_not_shown_in_errors() -> None:
    found = error("server.parameters.api_key=[geheim]", server={"url": "grpc://x"})
    assert "server.parameters.api_key" in found.line and "geheim" not in str(found)


def test_overrides_of_missing_list_entries() -> None:
    stages = {"stages": [{"type": "constant", "rate": 1, "requests": 1}]}
    assert "not an entry of that list" in error("load.stages.5.rate=1", load=stages).line
    assert "not an entry of that list" in error("load.stages.x=1", load=stages).line


BOMB = "a: &a {{x: 1}}\n" + "".join(
    f"{name}: &{name} {{}}[{', '.join(9 * [f'*{chr(ord(name) - 1)}'])}]{{}}\n" for name in "bcdefghij"
).replace("{}[", "{0}[").replace("]{}", "]{1}")
"""Lines that each repeat the one before nine times."""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("server: [1", "line 1, column"),
        ("a: b: c", "line 1, column 5"),
        ("\tx: 1", "is not YAML"),
        ("", "there are no sections"),
        ("- 1", "there are no sections"),
        (b"\xff\xfe\x00", "not a text file"),
        ("x: \x00", "is not YAML"),
        ("when: 2001-99-99", "is not YAML"),
        ("x: " + "[" * 1000, "is not YAML"),
        ("? [1]\n: 2", "is not YAML"),
        ("&a {x: *a}", "the file"),
        (BOMB.format("", ""), "repeat more than"),
        (BOMB.format("{<<: ", "}"), "repeat more than"),
    ],
    ids=range(13),
)
def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, text: str | bytes, what: str) -> None:
    with pytest.raises(UserError) as caught:
        from_mapping(read_tree(write(tmp_path, text)))
    assert what in caught.value.line or text == "&a {x: *a}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/nowhere/bench.yaml", "/", "x\0y"])
def test_missing_files(path: str) -> None:
    with pytest.raises(UserError) as caught:
        read_tree(path)
    assert "YAML" in caught.value.remedy


KEYS = ["server", "data", "load", "client", "measure", "limits", "seed", "output", "url", "type", "rate", "duration", "stages",
        "requests", "concurrency", "headers", "prompts", "path", "tls", "timeouts", "warmup", "on", "off", "rates", "end", "x"]  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3), st.dates(), st.datetimes(),
    st.sampled_from(["10s", "http://x", "closed", "poisson", "bursts", "ramp", "auto", "1e999", "5", "prompts", "jsonl"]),
    st.just(10**400), st.frozensets(st.integers(), max_size=1),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.booleans(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@hypothesis_settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(KEYS[:8]), TREES, max_size=4), st.booleans())
def test_any_tree_is_a_config_or_a_user_error(tree: dict[str, Any], with_server: bool) -> None:
    try:
        found = from_mapping((SERVER | tree) if with_server else tree)
    except UserError as error:
        assert "\n" not in error.line
        return
    assert isinstance(found, Config)


NUMBERS = st.floats(allow_nan=False) | st.integers(-5, 10**6)


@hypothesis_settings(max_examples=100)
@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["constant", "poisson", "gamma", "ramp", "steps", "bursts", "closed"])},
        optional={
            "rate": NUMBERS, "duration": st.floats(0, 3), "requests": st.integers(0, 50), "end": NUMBERS, "start": NUMBERS,
            "rates": st.lists(NUMBERS, max_size=3), "on": st.floats(0, 3), "off": st.floats(0, 3), "idle_rate": st.floats(0, 100),
            "burstiness": NUMBERS, "concurrency": st.integers(0, 9), "ramp_up": st.floats(0, 9), "think": st.floats(0, 9),
        },
    )
)  # fmt: skip
def test_any_load_that_the_schema_takes_can_be_planned_or_is_a_user_error(load: dict[str, Any]) -> None:
    if max([0, *(load.get(name, 0) for name in ("rate", "end", "start")), *load.get("rates", ())]) > 1e5:
        load["requests"] = 10  # memory is not what is tested
    try:
        plan = schedule.plan(config(load=load).load, 0)
    except UserError:
        return
    assert plan.stages


# --- units -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("250ms", 0.25), ("1m30s", 90), ("2h", 7200), ("1.5", 1.5), (3, 3), (" 5 s ", 5), ("1e-3s", 0.001), ("7us", 7e-6),
     ("1 m 30 s", 90), ("100ns", 1e-7), ("2min", 120), (".5s", 0.5)],
)  # fmt: skip
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "s", "10x", "1m30", "-5s", "5 5s", "1,5s", None, True, [], -1, float("nan"), float("inf"), "1e999", "nan"]
)  # fmt: skip
def test_invalid_durations(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("64KiB", 65_536), ("1.5GB", 1_500_000_000), (7, 7), ("2MB", 2_000_000)]
)
def test_sizes(text: object, count: int) -> None:
    assert parse_bytes(text) == count


@given(st.floats(1e-9, 1e6))
def test_formatted_durations_can_be_parsed(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=0.01, abs=1 if seconds < 3600 else 60)


@given(st.integers(0, 2**45))
def test_formatted_sizes_can_be_parsed(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.01, abs=1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(50, "50"), (123.456, "123.5"), (9999.6, "10000"), (2_000_000, "2000000"), (0.25, "0.25"), (0, "0")],
)
def test_large_numbers_have_no_exponent(value: float, text: str) -> None:
    assert format_number(value, 4) == text


# --- what is left out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "api", "stream", "data"),
    [
        ({"url": "http://x"}, "chat", True, "synthetic"),
        ({"url": "http://x", "api": "completions", "stream": False}, "completions", False, "synthetic"),
        ({"url": "grpc://x"}, "kserve", False, "tensors"),
        ({"url": "grpcs://x", "stream": True}, "kserve", True, "tensors"),
        ({"url": "http://x", "api": "kserve"}, "kserve", False, "tensors"),
        ({"url": "http://x", "api": "kserve-json"}, "kserve-json", False, "tensors"),
        ({"url": "http://x", "api": "generate"}, "generate", True, "synthetic"),
    ],
)
def test_defaults_follow_from_the_url_and_the_api(server: dict[str, Any], api: str, stream: bool, data: str) -> None:
    found = from_mapping({"server": server})
    assert (found.server.api, found.server.stream) == (api, stream)
    assert found.data.__struct_config__.tag == data


def test_a_methods_messages_are_recognised_by_their_keys() -> None:
    server = {"url": "grpc://x", "api": "grpc", "method": "a.B/C"}
    for data in ({"messages": [{"name": "x"}]}, {"path": "requests.jsonl"}):
        assert from_mapping({"server": server, "data": data}).data.__struct_config__.tag == "messages"


@pytest.mark.parametrize(
    ("override", "what", "remedy"),
    [
        ("data.prompts=[]", "must have at least 1 entry", ""),
        ("client.processes=x", "there is no 'x'", "it takes auto | a whole number"),
    ],
)
def test_values_outside_a_choice_or_a_length_are_explained(override: str, what: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        from_mapping({"server": {"url": "http://x"}}, [override])
    assert what in caught.value.what and remedy in caught.value.remedy
