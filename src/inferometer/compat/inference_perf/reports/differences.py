"""Where the reports differ between `compat: right` and `compat: exact`: ours by default, and inference-perf's own on request."""

from inferometer.compat.inference_perf.differences import Difference

DIFFERENCES = (
    Difference(
        "request_latency",
        "Ends when the last byte of the response arrived.",
        "As by default. inference-perf counts the time that it takes to parse and to tokenise the response, too.",
    ),
    Difference(
        "time_to_first_token",
        "Counts from the start to the first token of any kind, also when the response is one chunk.",
        "Counts from the start to the first chunk with content, only for responses with at least two token times.",
    ),
    Difference(
        "normalized_time_per_output_token",
        "Responses without output tokens, or whose number of tokens is not known, are left out.",
        "Such responses count as 0.0, which lowers the mean and the percentiles.",
    ),
    Difference(
        "inter_token_latency",
        "There is one value per gap between chunks.",
        "With a tokenizer section, there is one time per token: the tokens of a chunk share its arrival, which adds gaps of 0.",
    ),
    Difference(
        "output_len, and output tokens in throughput, TPOT and NTPOT",
        "The server's count is used if it reports one, else the client's.",
        "The client counts the tokens of the kept text, unless use_server_output_tokens is set.",
    ),
    Difference(
        "output tokens that are not known",
        "They are left out of distributions.",
        "They count as 0.",
    ),
    Difference(
        "failures.prompt_tokens",
        "Tokens of the prompts of failed requests count as far as they are known.",
        "They count as 0.",
    ),
    Difference(
        "status 200 with an error in the body, or a stream that ends early or without a token",
        "The request failed.",
        "The request succeeded.",
    ),
    Difference(
        "schedule_delay of concurrent stages",
        "Counts from the instant at which the user was ready to send.",
        "Counts from the first instant of the stage, at which all of its requests were queued.",
    ),
    Difference(
        "adapter files",
        "They count all requests of the adapter.",
        "They leave out failed requests.",
    ),
    Difference(
        "token_count_mismatches",
        "Counts streamed responses whose chunks do not add up to the server's count of tokens.",
        "As by default with a tokenizer section, else 0.",
    ),
    Difference(
        "prompt_len.mean and output_len.mean of Prometheus reports (vLLM, SGLang)",
        "They are tokens per request.",
        "They are tokens per second: the mean over time of the counter's rate.",
    ),
    Difference(
        "the label model_name in Prometheus queries when server.model_name is not set",
        "It is the model that the server reported.",
        "It is the word None, which matches nothing.",
    ),
    Difference(
        "info.output_token_times",
        "There is one time per chunk with tokens.",
        "With a tokenizer section, there is one time per token.",
    ),
)
"""Differences of definition. Windows of throughput, rates, goodput and percentiles are inference-perf's in both."""

_BOTH = "As by default."
LIMITS = (
    Difference(
        "request_size_bytes",
        "These are the bytes of the body if texts were kept, else the bytes sent, which include the HTTP headers.",
        _BOTH,
    ),
    Difference("info.response_metrics.response_chunks", "It is empty: raw chunks are not recorded.", _BOTH),
    Difference("response", "It is the generated text, or null if texts were not kept.", _BOTH),
    Difference(
        "start_time, end_time", "They are seconds since the start of the run, not the machine's monotonic clock.", _BOTH
    ),
    Difference(
        "achieved_rate, throughput, goodput",
        "They are as inference-perf defines them: for example, achieved_rate is the number of requests over the time from the first start to the last.",
        _BOTH,
    ),
    Difference("validation.json", "A sweep does not show the false error that inference-perf reports.", _BOTH),
    Difference("benchmark report partials: run.time", "It begins with the first request of the stage.", _BOTH),
)
"""Where both differ from inference-perf's files, because the records of a run do not have its values."""
