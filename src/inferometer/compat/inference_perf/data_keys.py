"""The keys of inference-perf's section `data`: the workloads, distributions, media and recorded sessions."""

from typing import Any

from inferometer.compat.inference_perf.kinds import (
    LATER,
    REQUIRED,
    Choice,
    Either,
    Flag,
    Items,
    Key,
    Kind,
    Map,
    Number,
    Section,
    Text,
)

WHOLE = Number(whole=True)
COUNT = Number(whole=True, least=1)
FROM_0 = Number(whole=True, least=0)
REAL = Number()
POSITIVE = Number(above=0)
NOT_NEGATIVE = Number(least=0)
SHARE = Number(least=0, most=1)

NO_MEDIA = "images, video and audio cannot be generated yet"
NO_SESSIONS = "recorded and generated agent sessions cannot be replayed yet"
NO_FILTER = "it is Python code, which is never evaluated"

DATA_TYPES = (
    "mock", "shareGPT", "synthetic", "random", "shared_prefix", "cnn_dailymail", "infinity_instruct", "billsum_conversations",
    "conversation_replay", "visionarena", "otel_trace_replay", "weka_trace_replay", "synthetic_agentic", "workload_replay",
)  # fmt: skip

DISTRIBUTION = Section(
    {
        "type": Key(
            kind=Choice(("normal", "skew_normal", "lognormal", "uniform", "poisson", "fixed")),
            default="normal",
            runs="the distribution of the lengths",
        ),
        "min": Key(kind=WHOLE, default=10, runs="`min` of the length"),
        "max": Key(kind=WHOLE, default=1024, runs="`max` of the length"),
        "mean": Key(kind=REAL, default=512, runs="`mean` of the length"),
        "std_dev": Key(kind=NOT_NEGATIVE, default=200, runs="`std` of the length"),
        "variance": Key(kind=NOT_NEGATIVE, runs="its square root is `std_dev`, which must be 0 beside it"),
        "skew": Key(kind=REAL, default=0.0, runs="the skew of `skew_normal`"),
        "total_count": Key(kind=COUNT, runs="the number of different requests, which rises to what the stages need"),
    }
)
LENGTH = Either((WHOLE, DISTRIBUTION))

TRACE = Section(
    {
        "file": Key(kind=Text(), default=REQUIRED, runs="the path of the trace"),
        "format": Key(
            kind=Choice(("AzurePublicDataset",)), default="AzurePublicDataset", runs="the format of the trace"
        ),
    }
)


def _media(more: dict[str, Key]) -> Section:
    common = {
        "count": Key(kind=DISTRIBUTION, refused=NO_MEDIA),
        "insertion_point": Key(kind=Either((SHARE, DISTRIBUTION)), refused=NO_MEDIA),
    }
    return Section(common | more)


_SIZE = Section(
    {
        "width": Key(kind=COUNT, default=REQUIRED, refused=NO_MEDIA),
        "height": Key(kind=COUNT, default=REQUIRED, refused=NO_MEDIA),
    }
)
_RESOLUTION = Either((Choice(("4k", "1080p", "720p", "360p")), _SIZE))
_PROFILE = Section(
    {
        "resolution": Key(kind=_RESOLUTION, default=REQUIRED, refused=NO_MEDIA),
        "frames": Key(kind=COUNT, default=REQUIRED, refused=NO_MEDIA),
    }
)


def _weighted(name: str, kind: Kind) -> Items:
    return Items(
        Section(
            {
                name: Key(kind=kind, default=REQUIRED, refused=NO_MEDIA),
                "weight": Key(kind=REAL, default=1.0, refused=NO_MEDIA),
            }
        )
    )


MULTIMODAL = Section(
    {
        "image": Key(
            kind=_media(
                {
                    "resolutions": Key(
                        kind=Either((_RESOLUTION, _weighted("resolution", _RESOLUTION))), refused=NO_MEDIA
                    ),
                    "representation": Key(kind=Choice(("png", "jpeg", "webp")), default="png", refused=NO_MEDIA),
                }
            ),
            refused=NO_MEDIA,
        ),
        "video": Key(
            kind=_media(
                {
                    "profiles": Key(kind=Either((_PROFILE, _weighted("profile", _PROFILE))), refused=NO_MEDIA),
                    "representation": Key(
                        kind=Choice(("mp4", "png_frames", "jpeg_frames")), default="mp4", refused=NO_MEDIA
                    ),
                }
            ),
            refused=NO_MEDIA,
        ),
        "audio": Key(
            kind=_media({"durations": Key(kind=Either((POSITIVE, _weighted("duration", POSITIVE))), refused=NO_MEDIA)}),
            refused=NO_MEDIA,
        ),
    }
)

SHARED_PREFIX = Section(
    {
        "num_unique_system_prompts": Key(kind=COUNT, default=10, short="num_groups", runs="the number of prefixes"),
        "num_users_per_system_prompt": Key(
            kind=COUNT, default=10, short="num_prompts_per_group", runs="the number of questions per prefix"
        ),
        "system_prompt_len": Key(kind=LENGTH, default=100, runs="the length of the prefixes; a number, or fixed"),
        "question_len": Key(kind=LENGTH, default=50, runs="the length of what follows the prefix"),
        "output_len": Key(kind=LENGTH, default=50, runs="the number of tokens to generate"),
        "question_distribution": Key(kind=DISTRIBUTION, runs="an older spelling of `question_len`"),
        "output_distribution": Key(kind=DISTRIBUTION, runs="an older spelling of `output_len`"),
        "seed": Key(kind=WHOLE, runs="`seed`, before `load.base_seed`"),
        "enable_multi_turn_chat": Key(kind=Flag(), default=False, runs="sessions, one per user"),
        "multimodal": Key(kind=MULTIMODAL, refused=NO_MEDIA),
        "max_model_len": Key(kind=COUNT, refused=LATER),
    }
)

CONVERSATION_REPLAY = Section(
    {
        "seed": Key(kind=WHOLE, default=42, runs="`seed`"),
        "num_conversations": Key(kind=COUNT, default=200, runs="the number of conversations"),
        "shared_system_prompt_len": Key(
            kind=FROM_0, default=8359, runs="the length of the system prompt that all share"
        ),
        "dynamic_system_prompt_len": Key(kind=DISTRIBUTION, runs="0 only: the system prompt is the same for all"),
        "turns_per_conversation": Key(kind=DISTRIBUTION, runs="the number of turns; default 10"),
        "input_tokens_per_turn": Key(kind=DISTRIBUTION, runs="the length of a user's message; default 512"),
        "output_tokens_per_turn": Key(kind=DISTRIBUTION, runs="the number of tokens to generate; default 256"),
        "tool_call_latency_sec": Key(
            kind=DISTRIBUTION, runs="the time between two turns: fixed or lognormal; default none"
        ),
        "max_model_len": Key(kind=COUNT, default=225000, takes_null=True, runs="`sessions.context`"),
    }
)

_REPLAY: dict[str, Key] = {
    name: Key(kind=kind, default=default, refused=NO_SESSIONS)
    for name, kind, default in (
        ("use_static_model", Flag(), False),
        ("static_model_name", Text(), ""),
        ("model_mapping", Map(Text()), None),
        ("default_max_tokens", COUNT, 1000),
        ("override_tool_call_max_tokens", Flag(), True),
        ("tool_choice_mode", Choice(("force_recorded", "as_recorded")), "force_recorded"),
        ("inject_random_session_id", Flag(), False),
        ("duplicate_sessions_target", COUNT, None),
        ("max_wait_ms", FROM_0, 15000),
        ("predecessor_wait_timeout_sec", NOT_NEGATIVE, 3600.0),
        ("include_errors", Flag(), True),
        ("skip_invalid_files", Flag(), False),
        ("bad_tool_call_handling", Choice(("none", "use_recorded")), "none"),
    )
}
_SOURCES: dict[str, Key] = {
    "trace_directory": Key(kind=Text(), refused=NO_SESSIONS),
    "trace_files": Key(kind=Items(Text()), refused=NO_SESSIONS),
    "hf_dataset_path": Key(kind=Either((Text(), Map())), refused=NO_SESSIONS),
    "filter": Key(kind=Text(), refused=NO_FILTER),
}


def _refused(*rows: tuple[str, Kind, Any]) -> dict[str, Key]:
    return {name: Key(kind=kind, default=default, refused=NO_SESSIONS) for name, kind, default in rows}


OTEL = Section(
    _REPLAY
    | _SOURCES
    | _refused(
        ("attribute_to_header_map", Map(Text()), None),
        ("attribute_to_label_map", Map(Text()), None),
        ("disable_output_substitution", Flag(), False),
    )
)
WEKA = Section(
    _REPLAY
    | _SOURCES
    | _refused(
        ("trace_idle_gap_cap_seconds", REAL, 60.0),
        ("ignore_trace_delays", Flag(), False),
        ("use_think_time_only", Flag(), False),
        ("default_block_size", COUNT, 64),
        ("num_dataset_entries", COUNT, 100),
        ("datagen_workers", COUNT, None),
        ("max_model_len", COUNT, None),
    )
)
SYNTHETIC_AGENTIC = Section(
    _REPLAY
    | _refused(
        ("override_tool_call_max_tokens", Flag(), False),
        ("num_sessions", COUNT, REQUIRED),
        ("input_tokens_per_turn", LENGTH, REQUIRED),
        ("output_tokens_per_turn", LENGTH, REQUIRED),
        ("turns_per_session", LENGTH, 1),
        ("fanout_probability", SHARE, 0.0),
        ("theme_mix", Map(REAL), None),
        ("seed", WHOLE, 42),
        ("shared_system_prompt_len", LENGTH, 1000),
        ("tool_loop_depth", LENGTH, 2),
        ("sub_agents_per_spawn", LENGTH, None),
        ("max_depth", FROM_0, 2),
        ("max_events_per_session", COUNT, 64),
        ("tool_catalog_size_per_agent", LENGTH, 8),
        ("parallel_tool_calls_per_step", LENGTH, 1),
        ("tool_call_latency_sec", Either((NOT_NEGATIVE, DISTRIBUTION)), 1),
        ("user_think_time_sec", Either((NOT_NEGATIVE, DISTRIBUTION)), 10),
        ("max_model_len", COUNT, None),
        (
            "context_compaction",
            Section(_refused(("trigger_tokens", COUNT, REQUIRED), ("target_tokens", COUNT, REQUIRED))),
            None,
        ),
    )
)
_NO_HUB = "its images are on the hub, and images cannot be sent yet"
VISIONARENA = Section(
    {
        name: Key(kind=kind, default=default, refused=_NO_HUB)
        for name, kind, default in (
            ("hf_dataset_name", Text(), "lmarena-ai/VisionArena-Chat"),
            ("hf_split", Text(), "train"),
            ("hf_data_files", Either((Text(), Items(Text()))), None),
            ("num_rows", COUNT, 1000),
            ("max_images_per_request", COUNT, 1),
            ("insertion_point", Either((SHARE, DISTRIBUTION)), 0.0),
        )
    }
)

DATA = Section(
    {
        "type": Key(
            kind=Choice(DATA_TYPES),
            default="mock",
            runs="`data.type`; visionarena, otel_trace_replay, weka_trace_replay, synthetic_agentic and workload_replay are refused",
        ),
        "path": Key(kind=Text(), runs="`data.path`"),
        "corpus_file_path": Key(
            kind=Text(), runs="the text that synthetic prompts are cut from; data.type synthetic only"
        ),
        "input_distribution": Key(kind=DISTRIBUTION, runs="`data.input`; shareGPT: the range of lengths"),
        "output_distribution": Key(kind=DISTRIBUTION, runs="`data.output`; shareGPT: the range of lengths"),
        "shared_prefix": Key(kind=SHARED_PREFIX, runs="`data.type: synthetic` with shared prefixes"),
        "multimodal": Key(kind=MULTIMODAL, refused=NO_MEDIA),
        "trace": Key(kind=TRACE, runs="the lengths of requests, row by row"),
        "use_chat_template": Key(
            kind=Flag(), default=False, refused="lengths that include the chat template cannot be requested"
        ),
        "conversation_replay": Key(kind=CONVERSATION_REPLAY, runs="generated sessions"),
        "otel_trace_replay": Key(kind=OTEL, refused=NO_SESSIONS),
        "weka_trace_replay": Key(kind=WEKA, refused=NO_SESSIONS),
        "synthetic_agentic": Key(kind=SYNTHETIC_AGENTIC, refused=NO_SESSIONS),
        "visionarena": Key(kind=VISIONARENA, refused=_NO_HUB),
    }
)
