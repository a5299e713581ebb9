"""Where the reports differ between `compat: right` and `compat: exact`: ours by default, and inference-perf's own on request."""

import msgspec


class Difference(msgspec.Struct, frozen=True):
    """A figure with two definitions."""

    name: str
    """Field of the reports, or what the difference is about."""
    ours: str
    """`compat: right`, the default."""
    exact: str
    """`compat: exact`."""


DIFFERENCES = (
    Difference(
        "time_to_first_token",
        "from the start to the first token of any kind, also when the response is one chunk",
        "from the start to the first chunk with content, only for responses with at least two token times",
    ),
    Difference(
        "normalized_time_per_output_token",
        "left out for responses without output tokens, or whose number of tokens is not known",
        "0.0 for such responses, which lowers the mean and percentiles",
    ),
    Difference(
        "inter_token_latency",
        "one value per gap between chunks",
        "with a tokenizer section, one time per token: the tokens of a chunk share its arrival, which adds gaps of 0",
    ),
    Difference(
        "output tokens in output_len, throughput, TPOT and NTPOT",
        "the server's count, if it reports one, else the client's",
        "the client's count of the kept text, unless use_server_output_tokens is set or the text was not kept",
    ),
    Difference(
        "output tokens that are not known",
        "left out of distributions",
        "0",
    ),
    Difference(
        "prompt tokens of failures",
        "the number that was sent, if it is known",
        "0",
    ),
    Difference(
        "status 200 with an error in the body, or a stream that ends early or without a token",
        "a failure",
        "a success",
    ),
    Difference(
        "schedule_delay of concurrent stages",
        "from the instant at which the user was ready to send, to the start of the request",
        "from the first instant of the stage, at which all requests were queued, to the start of the request",
    ),
    Difference(
        "adapter files",
        "all requests of the adapter",
        "without failed requests",
    ),
    Difference(
        "token_count_mismatches",
        "streamed responses whose chunks do not add up to the server's count of tokens",
        "the same with a tokenizer section, else 0",
    ),
    Difference(
        "prompt_len.mean and output_len.mean of Prometheus reports (vLLM, SGLang)",
        "tokens per request",
        "tokens per second, as the mean over time of the counter's rate",
    ),
    Difference(
        "label model_name in Prometheus queries when server.model_name is not set",
        "the model that the server reported",
        "the word None, which matches nothing",
    ),
    Difference(
        "info.output_token_times",
        "one time per chunk with tokens",
        "with a tokenizer section, one time per token",
    ),
)
"""Differences of definition. Windows of throughput, rates, goodput and percentiles are inference-perf's in both."""

LIMITS = (
    Difference(
        "request_size_bytes",
        "bytes of the body if texts were kept, else bytes sent, which include the HTTP headers",
        "the same",
    ),
    Difference("info.response_metrics.response_chunks", "empty: raw chunks are not recorded", "the same"),
    Difference("response", "the generated text; null if texts were not kept", "the same"),
    Difference(
        "start_time, end_time", "seconds since the start of the run, not the machine's monotonic clock", "the same"
    ),
)
"""Where both differ from inference-perf's files, because the records of a run do not have its values."""
