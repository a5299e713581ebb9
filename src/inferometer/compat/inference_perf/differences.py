"""What differs from inference-perf: known flaws of its own are corrected unless `compat: exact` is set.

The table is printed in the docs. A row belongs here whenever a figure, a request or its timing is not what inference-perf has.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """One difference."""

    name: str
    """The key or the report field that it is about."""
    ours: str
    """What Inferometer does by default."""
    exact: str
    """What it does with `compat: exact`."""


DIFFERENCES = (
    Difference(
        "load.type constant",
        "Requests are sent at equal intervals.",
        "Requests are sent at random intervals that are rescaled to fill the duration, as inference-perf does.",
    ),
    Difference(
        "load.type poisson",
        "The intervals are exponential over the whole stage, with int(rate x duration) requests.",
        "As by default. inference-perf draws the number of requests of each second, and places the last of them at its end.",
    ),
    Difference(
        "load.type concurrent",
        "The users start one after the other, over about the duration of a request, so that they do not stay in step.",
        "All users start at once.",
    ),
    Difference(
        "load.interval",
        "The pause is between two stages.",
        "As by default. inference-perf also waits after the last stage, which has no effect on its figures.",
    ),
    Difference(
        "data.type random, synthetic in several stages",
        "Each stage has requests of its own, so that a prefix cache does not know the prompts from the stage before.",
        "As by default. inference-perf sends the same requests from the first one on in each stage.",
    ),
    Difference(
        "load.sweep with data.type random, synthetic",
        "The burst that finds the saturation, and the stages, have all of their requests.",
        "As by default. inference-perf has lengths for one request only, unless total_count is set; the other requests fail and are not reported.",
    ),
    Difference(
        "load.worker_max_concurrency",
        "Its default of 100 per worker is not applied: requests are sent when they are due, and overload shows. Any other "
        "value limits the requests in flight, to the value times the number of workers.",
        "The requests in flight are limited in any case.",
    ),
    Difference(
        "data.type shareGPT (also billsum_conversations, infinity_instruct) with api.type chat",
        "Everything before the last response is sent.",
        "The whole conversation is sent, including its last response.",
    ),
    Difference(
        "data.type shareGPT",
        "Every row that can be used is used, from the first.",
        "As by default. inference-perf skips the first row.",
    ),
    Difference(
        "data.type billsum_conversations",
        "The roles `human` and `gpt` are sent as `user` and `assistant`.",
        "As by default. inference-perf sends them as they are, which servers reject.",
    ),
    Difference(
        "data.type shared_prefix with api.type chat",
        "Requests go to /v1/chat/completions, with the prefix as the system message.",
        "Requests go to /v1/completions, as one text.",
    ),
    Difference(
        "data.shared_prefix.enable_multi_turn_chat",
        "As in inference-perf, request i of a stage belongs to user i modulo the number of users, and is sent at its time, or when the response to "
        "the user's request before is complete if that is later. A prompt consists of the system prompt, the earlier turns and a new question.",
        "As by default. inference-perf appends the same prefix and question again in each turn.",
    ),
    Difference(
        "data.type conversation_replay",
        "Every conversation has its own text, its system prompt and its history in all stages. The pause of a tool call is not part "
        "of a latency.",
        "As by default. inference-perf repeats num_conversations conversations, counts the pause as latency, and sends the "
        "first conversation of each later stage without its history.",
    ),
    Difference(
        "a data.type with an api.type that inference-perf does not send it to, such as random or synthetic with chat",
        "The prompts are sent as messages, or as a text.",
        "The combination is an error, as it is in inference-perf.",
    ),
    Difference(
        "data.type random, synthetic: distribution lognormal",
        "The distribution has the given mean and standard deviation.",
        "As by default. inference-perf adds `min` to a lognormal distribution with the mean `mean - min`.",
    ),
    Difference(
        "data.trace with a load other than trace_replay",
        "A stage has rate x duration requests, with the lengths of the rows in turn.",
        "As by default. In inference-perf, each stage has as many requests as the trace has rows.",
    ),
    Difference(
        "load.lora_traffic_split",
        "Every 64 requests are divided as the split says, in random order; each adapter goes through the data by itself.",
        "As by default. inference-perf draws the adapter of each request by chance.",
    ),
    Difference(
        "server.model_name is not set",
        "The server is asked for its models with the API key and the headers of the config.",
        "As by default. inference-perf asks without them, which fails if the server requires a key.",
    ),
    Difference(
        "before the run",
        "Up to 3 requests are sent one after the other, to find out how many connections and processes the load needs. They are not part of the results.",
        "No request is sent before the run.",
    ),
)
