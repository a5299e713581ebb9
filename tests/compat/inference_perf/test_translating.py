"""inference-perf's configs as ours: what each key becomes, and that the result is what would be sent."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED

from inferometer import config as configs
from inferometer import schedule, workload
from inferometer.compat.inference_perf import translating
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.types import OpenStage
from tests.compat.inference_perf.specs import STAGES, merged, spec

EXAMPLES = [
    *(Path(__file__).parent / "configs").glob("*.yml"),
    *(SHARED / "inference-perf-configs").glob("*.y*ml"),  # inference-perf's own, if they are there
]
_REFUSED = ("multimodal-",)


def accepted(translated: dict[str, Any]) -> Config:
    """The config, checked by our schema."""
    return configs.from_mapping(msgspec.json.decode(msgspec.json.encode(translated)))  # it must be plain


def config_of(**sections: Any) -> Config:
    return accepted(translating.translate(spec(**sections)).config)


def requests_of(config: Config, count: int) -> list[Any]:
    return workload.build(workload.salted(config.data, "t"), config.seed, range(count))


def lengths(low: int, high: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "normal",
        "min": low,
        "max": high,
        "mean": (low + high) / 2,
        "std_dev": 10,
        "variance": None,
        **more,
    }


# --- examples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(EXAMPLES), ids=lambda path: path.name)
def test_configs_are_accepted_or_refused_by_name(path: Path) -> None:
    whole = merged(spec(), yaml.safe_load(path.read_text()))
    if path.name.startswith(_REFUSED):
        with pytest.raises(UserError) as raised:
            translating.translate(whole)
        assert raised.value.key.startswith("data.")
        return
    if whole["load"]["sweep"]:
        whole = merged(whole, {"load": {"stages": [{"rate": 3.5, "duration": 60}]}})
    for compat in ("right", "exact"):
        if compat == "exact" and path.name.startswith("structured"):
            continue  # inference-perf itself refuses it
        translation = translating.translate(whole | {"compat": compat})
        accepted(translation.config)
        assert translation.notes


# --- server ------------------------------------------------------------------------------------------------------------


def test_server_section() -> None:
    server = config_of(
        api={"type": "chat", "streaming": True, "headers": {"x-team": "a"}, "session_id_header_key": "x-session"},
        server={"cert_path": "c.pem", "key_path": "k.pem", "ignore_eos": False},
        load={"request_timeout": 7.5},
    ).server
    assert (server.api, server.stream, server.ignore_eos, server.model) == ("chat", True, False, "m")
    assert (server.timeouts.total, server.tls.cert, server.tls.key) == (7.5, "c.pem", "k.pem")
    assert server.headers == {"x-team": "a"}
    assert config_of().server.timeouts.total == 300


def test_secrets_are_not_in_the_config() -> None:
    translation = translating.translate(
        spec(server={"api_key": "sk-1"}, api={"headers": {"X-Api-Key": "sk-2"}}, tokenizer={"token": "hf-3"})
    )
    text = repr(translation.config) + repr(translation.notes)
    assert not [word for word in ("sk-1", "sk-2", "hf-3") if word in text]
    assert translation.headers == {"X-Api-Key": "sk-2", "Authorization": "Bearer sk-1"}
    assert translation.environment == {"HF_TOKEN": "hf-3"}
    assert translating.to_config(translation).server.headers == translation.headers


def test_a_header_replaces_the_api_key() -> None:
    given = spec(server={"api_key": "sk-1"}, api={"headers": {"authorization": "Basic abc"}})
    assert translating.translate(given).headers == {"authorization": "Basic abc"}


def test_messages_api_has_no_fields_of_openai() -> None:
    given = spec(
        api={"type": "anthropic_messages", "response_format": {"type": "json_object"}}, server={"api_key": "sk-1"}
    )
    translation = translating.translate(given)
    server = translation.config["server"]
    assert server["api"] == "messages" and not server["ignore_eos"] and "body" not in server
    assert translation.headers == {"x-api-key": "sk-1"}


def test_response_format_goes_into_the_body() -> None:
    wanted = {"type": "json_schema", "name": "n", "json_schema": {"type": "object"}}
    assert config_of(api={"type": "chat", "response_format": wanted}).server.body == {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    }


# --- load --------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(("constant", "poisson")),
    st.sampled_from(("right", "exact")),
    st.lists(st.tuples(st.floats(0.5, 50), st.integers(2, 40)), min_size=1, max_size=3),
    st.integers(0, 2**40) | st.none(),
)
def test_stages_have_the_requests_of_their_rate(
    kind: str, compat: str, stages: list[tuple[float, int]], seed: int | None
) -> None:
    listed = [{"rate": rate, "duration": duration} for rate, duration in stages]
    config = config_of(compat=compat, load={"type": kind, "stages": listed, "base_seed": seed})
    plan = schedule.plan(config.load, config.seed)
    assert [len(stage.instants) for stage in plan.stages] == [int(rate * duration) for rate, duration in stages]
    assert all(stage.duration <= duration * 1e9 for stage, (_, duration) in zip(plan.stages, stages, strict=True))


def test_constant_is_even_unless_it_must_be_exact() -> None:
    even, exact = (
        schedule.plan(config_of(compat=compat, load={"stages": [{"rate": 10, "duration": 10}]}).load, 1).stages[0]
        for compat in ("right", "exact")
    )
    gaps = {int(gap) for gap in even.instants[1:] - even.instants[:-1]}
    assert gaps == {100_000_000}
    assert len({int(gap) for gap in exact.instants[1:] - exact.instants[:-1]}) > 90


def test_concurrent_is_a_closed_loop() -> None:
    config = config_of(
        load={"type": "concurrent", "stages": [{"num_requests": 40, "concurrency_level": 4, "rate": 40, "duration": 1}]}
    )
    stage = schedule.plan(config.load, 0).stages[0]
    assert (stage.concurrency, stage.requests) == (4, 40)


def test_interval_is_a_pause_between_stages() -> None:
    load = translating.translate(spec(load={"interval": 15, "stages": STAGES * 2})).config["load"]
    assert load["pause"] == "15s" and load["drain"] is True


def test_trace_replay_has_the_rows_of_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    section = {"file": str(trace), "format": "AzurePublicDataset"}
    config = config_of(load={"type": "trace_replay", "trace": section}, data={"type": "random", "trace": section})
    assert [(request.n_in, request.n_out) for request in requests_of(config, 2)] == [(374, 44), (396, 109)]
    assert config.load.__struct_config__.tag == "trace"


def test_workers_and_limits() -> None:
    config = config_of(load={"num_workers": 3, "worker_max_concurrency": 10, "stage_teardown_grace_seconds": 60})
    assert config.client.processes == 3 and config.client.grace == 60
    assert config.load.stages[0].max_concurrency == 30  # type: ignore[union-attr]
    assert config_of().load.stages[0].max_concurrency == 0  # type: ignore[union-attr]


def test_retries() -> None:
    client = translating.translate(spec(load={"request_retries": 2, "request_retry_backoff_sec": 0.25})).config[
        "client"
    ]
    assert client["retries"] == 2 and client["retry_backoff"] == "0.25s"


# --- data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["synthetic", "random"])
def test_lengths_of_generated_prompts(kind: str) -> None:
    config = config_of(
        data={"type": kind, "input_distribution": lengths(10, 60), "output_distribution": lengths(20, 25)}
    )
    made = requests_of(config, 40)
    assert {10 <= request.n_in <= 60 for request in made} == {20 <= request.n_out <= 25 for request in made} == {True}
    assert len({request.n_in for request in made}) > 5


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (lengths(10, 100, type="fixed", mean=300.7), 300),
        (lengths(10, 100, type="uniform"), {"type": "uniform", "min": 10, "max": 100}),
        (lengths(10, 100, std_dev=0, variance=49), {"type": "normal", "mean": 55.0, "std": 7.0, "min": 10, "max": 100}),
        (lengths(10, 100, std_dev=0), 55),
        (
            lengths(0, 100, type="skew_normal", skew=2.5),
            {"type": "skew_normal", "mean": 50.0, "std": 10.0, "skew": 2.5, "min": 1, "max": 100},
        ),
        (lengths(10, 100, type="poisson"), {"type": "poisson", "mean": 55.0, "min": 10, "max": 100}),
    ],
)
def test_distributions(distribution: dict[str, Any], expected: Any) -> None:
    given = spec(data={"type": "random", "input_distribution": distribution, "output_distribution": lengths(1, 9)})
    translated = translating.translate(given).config["data"]["input"]
    assert translated == expected


def test_shared_prefix_has_its_groups() -> None:
    sizes = {
        "num_unique_system_prompts": 3,
        "num_users_per_system_prompt": 4,
        "system_prompt_len": 30,
        "question_len": 10,
        "output_len": 7,
    }
    made = requests_of(config_of(data={"type": "shared_prefix", "shared_prefix": sizes}), 12)
    assert len({request.payload[:60] for request in made}) == 3
    assert len({request.payload for request in made}) == 12
    assert {(request.n_in, request.n_out) for request in made} == {(40, 7)}


def test_shared_prefix_goes_to_chat_unless_it_must_be_exact() -> None:
    assert config_of(api={"type": "chat"}, data={"type": "shared_prefix"}).server.api == "chat"
    assert config_of(compat="exact", api={"type": "chat"}, data={"type": "shared_prefix"}).server.api == "completions"


def test_multi_turn_users_are_sessions() -> None:
    sizes = {"num_groups": 2, "num_prompts_per_group": 10, "enable_multi_turn_chat": True}
    config = config_of(
        data={"type": "shared_prefix", "shared_prefix": sizes}, load={"stages": [{"rate": 20, "duration": 5}]}
    )
    turns = workload.mean_turns(config.data, config.seed)
    assert turns == 5 and config.sessions.on_failure == "continue"
    (stage,) = schedule.plan(config.load, 0, turns=turns).stages
    assert isinstance(stage, OpenStage) and stage.turns is not None
    assert (len(stage.instants), len(stage.turns.instants)) == (20, 100)
    assert (stage.turns.due(3, 4), stage.turns.due(3, 5)) == (4_150_000_000, None)


def test_conversation_replay() -> None:
    sizes = {
        "shared_system_prompt_len": 40,
        "turns_per_conversation": 3,
        "input_tokens_per_turn": 8,
        "output_tokens_per_turn": 9,
    }
    concurrent = {"type": "concurrent", "stages": [{"num_requests": 6, "concurrency_level": 2}]}
    config = config_of(data={"type": "conversation_replay", "conversation_replay": sizes}, load=concurrent)
    first = requests_of(config, 1)[0]
    assert (first.n_in, first.n_out, len(first.later)) == (48, 9, 2)
    assert config.sessions.context == 225_000


def test_conversations_may_add_to_the_system_prompt() -> None:
    added = {"type": "uniform", "min": 10, "max": 20}
    sizes = {"shared_system_prompt_len": 40, "input_tokens_per_turn": 8, "dynamic_system_prompt_len": added}
    config = config_of(data={"type": "conversation_replay", "conversation_replay": sizes})
    made = requests_of(config, 8)
    systems = [request.payload[0]["content"] for request in made]
    assert len(set(systems)) == 8 and len({system[:80] for system in systems}) == 1
    assert all(50 <= request.n_system <= 60 and request.n_in == request.n_system + 8 for request in made)


def _sharegpt(folder: Path) -> str:
    path = folder / "conversations.json"
    turns = [{"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine, thank you."}]
    path.write_text(msgspec.json.encode([{"conversations": turns * 2}]).decode())
    return str(path)


def test_sharegpt_completion_requests_the_recorded_length(tmp_path: Path) -> None:
    config = config_of(data={"type": "shareGPT", "path": _sharegpt(tmp_path)})
    request = requests_of(config, 1)[0]
    assert request.payload == "How are you?" and 2 < request.n_out < 8


@pytest.mark.parametrize(("compat", "messages"), [("right", 3), ("exact", 4)])
def test_sharegpt_chat_leaves_the_last_response_out(tmp_path: Path, compat: str, messages: int) -> None:
    config = config_of(compat=compat, api={"type": "chat"}, data={"type": "shareGPT", "path": _sharegpt(tmp_path)})
    request = requests_of(config, 1)[0]
    assert len(request.payload) == messages and request.n_out == 30


def test_cnn_dailymail(tmp_path: Path) -> None:
    path = tmp_path / "news.csv"
    path.write_text('article,highlights\n"It rained all day.","Rain."\n')
    request = requests_of(config_of(data={"type": "cnn_dailymail", "path": str(path)}), 1)[0]
    assert request.payload == "It rained all day." and 1 <= request.n_out <= 4


def test_mock_prompts_are_numbered() -> None:
    made = requests_of(config_of(), 30)
    assert len({request.payload for request in made}) == 30 and {request.n_out for request in made} == {30}


def test_adapters_have_their_shares() -> None:
    split = [{"name": "a", "split": 0.7}, {"name": "b", "split": 0.2}, {"name": "c", "split": 0.1}]
    made = requests_of(config_of(load={"lora_traffic_split": split}), 640)
    models = [request.options.model for request in made]
    assert [abs(models.count(name) - share) < 3 for name, share in (("a", 448), ("b", 128), ("c", 64))] == [True] * 3


def test_base_seed_gives_the_same_prompts() -> None:
    given = {"data": {"type": "random", "input_distribution": lengths(10, 60), "output_distribution": lengths(10, 60)}}
    first, again = (config_of(load={"base_seed": 42}, **given) for _ in range(2))
    texts = [
        [r.payload for r in workload.build(workload.salted(c.data, tag), c.seed, range(3))]
        for c, tag in ((first, "x"), (again, "y"))
    ]
    assert texts[0] == texts[1]


# --- any valid config ---------------------------------------------------------------------------------------------------

_KINDS = ("fixed", "uniform", "normal", "skew_normal", "lognormal", "poisson")
_DISTRIBUTIONS = st.builds(
    lambda kind, low, more, std, skew: lengths(low, low + more, type=kind, mean=low + more // 2 + 1, std_dev=std, skew=skew),
    st.sampled_from(_KINDS), st.integers(0, 50), st.integers(1, 500), st.floats(0, 90), st.floats(-5, 5),
)  # fmt: skip
_LENGTHS = st.integers(1, 300) | _DISTRIBUTIONS
_DATA = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(("random", "synthetic")),
            "input_distribution": _DISTRIBUTIONS,
            "output_distribution": _DISTRIBUTIONS,
        }
    ),
    st.builds(
        lambda own: {"type": "shared_prefix", "shared_prefix": own},
        st.fixed_dictionaries(
            {
                "num_unique_system_prompts": st.integers(1, 20),
                "system_prompt_len": _LENGTHS,
                "question_len": _LENGTHS,
                "output_len": _LENGTHS,
            }
        ),
    ),
    st.builds(
        lambda own: {"type": "conversation_replay", "conversation_replay": own},
        st.fixed_dictionaries(
            {
                "turns_per_conversation": _LENGTHS,
                "dynamic_system_prompt_len": _LENGTHS,
                "input_tokens_per_turn": _LENGTHS,
                "max_model_len": st.none() | st.integers(1, 9**6),
            }
        ),
    ),
    st.sampled_from([{"type": "mock"}, {"type": "shareGPT"}, {"type": "cnn_dailymail"}]),
)
_RATED = st.fixed_dictionaries({"rate": st.floats(1, 100), "duration": st.integers(1, 60)})
_CLOSED = st.fixed_dictionaries({"num_requests": st.integers(1, 100), "concurrency_level": st.integers(1, 100)})
_LOADS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(("constant", "poisson")), "stages": st.lists(_RATED, min_size=1, max_size=3)}
    ),
    st.fixed_dictionaries({"type": st.just("concurrent"), "stages": st.lists(_CLOSED, min_size=1, max_size=3)}),
)


@settings(max_examples=50, deadline=None)
@given(_DATA, _LOADS, st.sampled_from(("completion", "chat")), st.booleans(), st.integers(0, 8), st.integers(0, 200))
def test_any_valid_config_is_accepted(
    data: dict[str, Any], load: dict[str, Any], api: str, is_streamed: bool, workers: int, concurrency: int
) -> None:
    load = load | {"num_workers": workers, "worker_max_concurrency": concurrency}
    config_of(data=data, load=load, api={"type": api, "streaming": is_streamed})


# --- texts that are kept ------------------------------------------------------------------------------------------------


def test_texts_are_kept_for_reports_with_requests() -> None:
    assert config_of().kept == []
    assert config_of(report={"request_lifecycle": {"per_request": True}}).kept == ["text"]
    fields = {"request": False, "response": False, "response_chunks": False}
    assert config_of(report={"request_lifecycle": {"per_request": True, "per_request_fields": fields}}).kept == []
    assert config_of(compat="exact").kept == ["text"]


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"server": {"type": "mock"}}, "server.type"),
        ({"server": None}, "server"),
        ({"api": {"type": "embeddings"}}, "api.type"),
        ({"data": {"type": "visionarena"}}, "data.type"),
        ({"data": {"type": "otel_trace_replay"}}, "data.type"),
        ({"data": {"type": "synthetic", "multimodal": {"image": {"count": {"mean": 1}}}}}, "data.multimodal"),
        ({"data": {"type": "random", "use_chat_template": True}}, "data.use_chat_template"),
        ({"data": {"type": "random"}}, "data.input_distribution"),
        ({"data": {"type": "infinity_instruct"}}, "data.path"),
        ({"load": {"type": "trace_session_replay"}}, "load.type"),
        ({"load": {"stages": []}}, "load.stages"),
        ({"load": {"stages": [{"rate": 0.1, "duration": 5}]}}, "load.stages.0"),
        ({"load": {"stages": [{"rate": "1 + t", "duration": 5}]}}, "load.stages.0.rate"),
        ({"load": {"stages": [], "sweep": {"type": "linear"}}}, "load.sweep"),
        ({"load": {"lora_traffic_split": [{"name": "a", "split": 0.5}]}}, "load.lora_traffic_split"),
        ({"load": {"type": "trace_replay", "trace": {"file": "x"}}}, "load.trace"),
        ({"load": {"circuit_breakers": ["b"]}}, "load.circuit_breakers"),
        ({"metrics": {"prometheus": {"google_managed": True}}}, "metrics.prometheus.google_managed"),
        ({"tokenizer": {"load_timeout": 5}}, "tokenizer.load_timeout"),
    ],
)  # fmt: skip
def test_unsupported_values_are_refused_by_their_key(sections: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as raised:
        translating.translate(spec(**sections))
    assert raised.value.key == key and raised.value.remedy
