"""perf_analyzer's command line: its options, and the config of ours that means the same.

The options and defaults are those that perf_analyzer documents for its command line. What differs in spite of the same
settings is in docs/how-to/from-perf-analyzer.md.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from inferometer.compat.command_line import Given, Option, header_pairs, headers, parse, url_without_password

NAMES = {
    "server.url": "-u",
    "server.model": "-m",
    "server.version": "-x",
    "server.compression": "--grpc-compression-algorithm",
    "server.stream": "--streaming",
    "server.shared_memory": "--shared-memory",
    "data.fill": "--input-data",
    "data.shape": "--shape",
    "data.batch": "-b",
    "data.sequence": "--sequence-length",
    "load.concurrency": "--concurrency-range",
    "load.rate": "--request-rate-range",
    "load.requests": "--request-count",
    "load.window": "--measurement-interval",
    "load.stable": "--stability-percentage",
}
"""What perf_analyzer calls our settings."""

_SEARCH = "use inferometer capacity, which finds the highest load that holds an objective such as 'e2e.p99 < 100ms'"
_RANGE = "give --concurrency-range START:END:STEP"
_OWN_API = "it goes with a --service-kind that is not supported"
_ASYNC = "one process has all requests in flight, without a thread for each"
_RECORDS = "every run stores its requests; `inferometer report RUN --csv FILE` writes one row for each"

OPTIONS = (
    # general
    Option("-m", becomes="server.model"),
    Option("-x", becomes="server.version"),
    Option("--service-kind", default="triton", becomes="server.api"),
    Option("--bls-composing-models", no_effect="the server's figures are those of the model itself"),
    Option("--model-signature-name", no_effect="it is for TensorFlow Serving"),
    Option("-v --verbose", takes="flag", no_effect="the report is the same"),
    Option("--version", takes="flag", refused="this measures nothing", instead="use inferometer --version"),
    # measurement
    Option(
        "--measurement-mode",
        default="time_windows",
        choices=("time_windows", "count_windows"),
        becomes="load.window",
    ),
    Option("--measurement-interval -p", int, 5000, becomes="load.window"),
    Option("--measurement-request-count", no_effect="it is for --measurement-mode count_windows"),
    Option("--stability-percentage -s", float, 10.0, becomes="load.stable"),
    Option("--percentile", int, -1, becomes="report.percentiles"),
    Option("--warmup-request-count", int, 0, becomes="measure.warmup"),
    Option("--request-count --num-requests", int, 0, becomes="load.requests"),
    Option("--max-trials -r", int, 10, becomes="load.duration"),
    Option("--concurrency-range", default="1", becomes="load.concurrency"),
    Option("--periodic-concurrency-range", refused="the concurrency cannot depend on responses", instead=_RANGE),
    Option("--request-period", refused="it goes with --periodic-concurrency-range", instead=_RANGE),
    Option("--request-parameter", repeats=True, becomes="server.parameters"),
    Option("--request-rate-range", becomes="load.rate"),
    Option("--request-distribution", default="constant", choices=("constant", "poisson"), becomes="load.type"),
    Option("--latency-threshold -l", int, 0, becomes="load"),
    Option("--binary-search", takes="flag", refused="a range is measured level by level", instead=_SEARCH),
    Option(
        "--request-intervals",
        refused="there is no load whose intervals repeat a file",
        instead="replay a trace: data: {type: trace} and load: {type: trace}",
    ),
    Option(
        "--schedule", refused="there is no load from a list of times", instead="replay a trace: load: {type: trace}"
    ),
    Option("--session-concurrency", refused=_OWN_API, instead="use inferometer run with data: {type: conversation}"),
    Option("--max-threads", no_effect=_ASYNC),
    Option("--enable-mpi", takes="flag", refused="there is no MPI", instead="start one run per model"),
    # sequences
    Option("--num-of-sequences", int, 4, becomes="data.sequence"),
    Option("--sequence-length", int, becomes="data.sequence"),
    Option("--sequence-length-variation", float, 20.0, becomes="data.sequence"),
    Option("--sequence-id-range", refused="correlation ids are chosen here, unique to the run"),
    Option("--serial-sequences", takes="flag", no_effect="a sequence never has more than one request in flight"),
    # input data
    Option("--input-data", default="random", repeats=True, becomes="data.fill"),
    Option("--data-directory", becomes="data.fill"),
    Option("-z", takes="flag", becomes="data.fill"),
    Option("-b", int, 1, becomes="data.batch"),
    Option("--shape", repeats=True, becomes="data.shape"),
    Option("--string-data", becomes="data.strings"),
    Option("--string-length", int, 128, becomes="data.strings"),
    Option("--shared-memory", default="none", choices=("none", "system", "cuda"), becomes="server.shared_memory"),
    Option("--output-shared-memory-size", no_effect="regions are as large as the outputs of the first response"),
    Option("--input-tensor-format", default="binary", choices=("binary", "json"), becomes="server.api"),
    Option("--output-tensor-format", default="binary", choices=("binary", "json"), becomes="server.api"),
    # requests
    Option("-i", default="http", becomes="server.url"),
    Option("-a --async", takes="flag", no_effect=_ASYNC),
    Option("--sync", takes="flag", no_effect=_ASYNC),
    Option("--streaming", takes="flag", becomes="server.stream"),
    Option("-H", repeats=True, becomes="server.headers"),
    Option(
        "--grpc-compression-algorithm",
        default="none",
        choices=("none", "gzip", "deflate"),
        becomes="server.compression",
    ),
    Option("--grpc-method", refused=_OWN_API, instead="use inferometer run with server.api: grpc and server.method"),
    Option("--endpoint", refused=_OWN_API, instead="use inferometer run http://HOST:PORT for an OpenAI server"),
    # server
    Option("-u", becomes="server.url"),
    Option("--ssl-grpc-use-ssl", takes="flag", becomes="server.url"),
    Option("--ssl-grpc-root-certifications-file", becomes="server.tls.ca"),
    Option("--ssl-grpc-private-key-file", becomes="server.tls.key"),
    Option("--ssl-grpc-certificate-chain-file", becomes="server.tls.cert"),
    Option("--ssl-https-verify-peer", int, 1, becomes="server.tls.verify"),
    Option("--ssl-https-verify-host", int, 2, becomes="server.tls.verify"),
    Option("--ssl-https-ca-certificates-file", becomes="server.tls.ca"),
    Option("--ssl-https-client-certificate-file", becomes="server.tls.cert"),
    Option("--ssl-https-client-certificate-type", default="PEM", becomes="server.tls.cert"),
    Option("--ssl-https-private-key-file", becomes="server.tls.key"),
    Option("--ssl-https-private-key-type", default="PEM", becomes="server.tls.key"),
    Option("--triton-server-directory", no_effect="it is for --service-kind triton_c_api"),
    Option("--model-repository", no_effect="it is for --service-kind triton_c_api"),
    # the server's metrics, and reports
    Option("--collect-metrics", takes="flag", becomes="observe.prometheus"),
    Option("--metrics-url", becomes="observe.prometheus"),
    Option("--metrics-interval", int, 1000, becomes="observe.interval"),
    Option("-f --filename", becomes="report.perf_csv"),
    Option("--verbose-csv", takes="flag", no_effect="the CSV file has one set of columns"),
    Option("--profile-export-file", refused="that file is not written", instead=f"leave it out: {_RECORDS}"),
    # traces of the server
    Option("--trace-level", default="OFF", becomes="server"),
    Option("--trace-rate", no_effect="the server's trace settings stay as they are"),
    Option("--trace-count", no_effect="the server's trace settings stay as they are"),
    Option("--log-frequency", no_effect="the server's trace settings stay as they are"),
    # deprecated
    Option("-t", int, becomes="load.concurrency"),
    Option("-c", refused="it is deprecated", instead=_RANGE),
    Option("-d", takes="flag", refused="it is deprecated", instead=_RANGE),
)


def translate(words: Sequence[str], with_secrets: bool = False) -> tuple[dict[str, Any], Given]:
    """Translate the words after `perf_analyzer`. Returns our config, as its YAML file would contain it, and the options, with notes.

    `with_secrets`: the config is measured at once, so that it contains the values of all headers.
    """
    given = parse("perf_analyzer", OPTIONS, words, with_secrets)
    _check_service(given)
    config: dict[str, Any] = {"server": _server(given), "data": _data(given), "load": _load(given)}
    if warmup := given["--warmup-request-count"]:
        config["measure"] = {"warmup": warmup}
    if "--collect-metrics" in given:
        host = urlsplit(config["server"]["url"]).hostname or "localhost"
        config["observe"] = {
            "prometheus": [_with_scheme(given["--metrics-url"] or f"{host}:8002/metrics")],
            "interval": f"{given['--metrics-interval']}ms",
        }
    report = _report(given)
    return config | ({"report": report} if report else {}), given


def _check_service(given: Given) -> None:
    kind = given["--service-kind"]
    if kind == "openai":
        raise given.refuse(
            "--service-kind", "its input files are not supported", "use inferometer run http://HOST:PORT"
        )
    if kind != "triton":
        raise given.refuse("--service-kind", "only KServe v2 servers such as Triton can be measured")
    if "-m" not in given:
        raise given.refuse("-m", "the name of the model is missing", "add -m NAME")
    if given["--trace-level"] != "OFF":
        raise given.refuse("--trace-level", "the server's trace settings are not changed from here")


# --- server ----------------------------------------------------------------------------------------------------------


def _server(given: Given) -> dict[str, Any]:
    protocol = given["-i"].lower()
    if protocol not in ("http", "grpc"):
        raise given.refuse("-i", "the protocol must be http or grpc", "correct it")
    is_grpc = protocol == "grpc"
    formats = {given["--input-tensor-format"], given["--output-tensor-format"]}
    if len(formats) > 1 and not is_grpc:
        raise given.refuse("--output-tensor-format", "inputs and outputs have the same format", "make both the same")
    server: dict[str, Any] = {"url": _url(given, is_grpc), "model": given["-m"]}
    if "-x" in given:
        server["version"] = given["-x"]
    server["api"] = "kserve-json" if formats == {"json"} and not is_grpc else "kserve"
    if "--streaming" in given and not is_grpc:
        raise given.refuse("--streaming", "it needs gRPC", "add -i grpc")
    server["stream"] = "persistent" if "--streaming" in given else False
    if is_grpc:
        server["compression"] = given["--grpc-compression-algorithm"]
        if "-H" in given:
            given.notes.append("-H has no effect here: perf_analyzer ignores it over gRPC.")
    elif "--grpc-compression-algorithm" in given:
        raise given.refuse("--grpc-compression-algorithm", "it needs gRPC", "add -i grpc")
    else:
        server |= headers(given, "-H", header_pairs(given, "-H", ":"))
    if given["--shared-memory"] == "cuda":
        raise given.refuse("--shared-memory", "CUDA regions are not supported", "use --shared-memory system")
    server["shared_memory"] = given["--shared-memory"] == "system"
    if parameters := given["--request-parameter"]:
        server["parameters"] = dict(_parameter(given, one) for one in parameters)
    if tls := _tls(given, server["url"]):
        server["tls"] = tls
    server["timeouts"] = {"total": 0}  # perf_analyzer waits for every response
    return server


def _url(given: Given, is_grpc: bool) -> str:
    url = given["-u"] or ("localhost:8001" if is_grpc else "localhost:8000")
    _, separator, rest = url.partition("://")
    if is_grpc:
        rest = rest if separator else url
        return f"{'grpcs' if '--ssl-grpc-use-ssl' in given else 'grpc'}://{rest}"
    return url_without_password(given, "-u", url if separator else f"http://{url}")


def _with_scheme(url: str) -> str:
    return url if "://" in url else f"http://{url}"


def _parameter(given: Given, text: str) -> tuple[str, bool | int | str]:
    name, _, rest = text.partition(":")
    value, _, kind = rest.rpartition(":")
    read: dict[str, Callable[[str], bool | int | str]] = {"bool": _flag, "int": int, "string": str}
    try:
        made = read[kind.lower()](value)
    except (KeyError, ValueError):
        raise given.refuse(
            "--request-parameter", f"{text!r} is not NAME:VALUE:TYPE with bool, int or string", "correct it"
        ) from None
    return name, made


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _tls(given: Given, url: str) -> dict[str, Any]:
    if url.startswith("grpcs://"):
        names = {
            "ca": "--ssl-grpc-root-certifications-file",
            "cert": "--ssl-grpc-certificate-chain-file",
            "key": "--ssl-grpc-private-key-file",
        }
    elif url.startswith("https://"):
        names = {
            "ca": "--ssl-https-ca-certificates-file",
            "cert": "--ssl-https-client-certificate-file",
            "key": "--ssl-https-private-key-file",
        }
    else:
        return {}
    for option in ("--ssl-https-client-certificate-type", "--ssl-https-private-key-type"):
        if given[option] != "PEM":
            raise given.refuse(option, "certificates and keys are PEM files", "convert the file with openssl")
    tls: dict[str, Any] = {key: given[option] for key, option in names.items() if option in given}
    if url.startswith("https://") and not given["--ssl-https-verify-peer"]:
        tls["verify"] = False
    elif url.startswith("https://") and not given["--ssl-https-verify-host"]:
        raise given.refuse(
            "--ssl-https-verify-host",
            "the server's name is verified together with its certificate",
            "turn off both with --ssl-https-verify-peer 0",
        )
    return tls


# --- data and load ---------------------------------------------------------------------------------------------------


def _data(given: Given) -> dict[str, Any]:
    files = given.values.get("--input-data", [])
    files = [*files, *([given["--data-directory"]] if "--data-directory" in given else [])]
    if len(files) > 1:
        raise given.refuse("--input-data", "there can be one file", "put the streams of all files into one")
    source = "zero" if "-z" in given else files[0] if files else "random"
    fill = {"zero": "zeros", "random": "random"}.get(source, f"@{source}")
    data: dict[str, Any] = {"type": "tensors", "fill": fill, "batch": given["-b"]}
    if fill == "random":
        text = given["--string-data"]
        data["strings"] = {"value": text} if text is not None else {"length": given["--string-length"]}
    if shapes := given["--shape"]:
        data["shape"] = dict(_shape(given, one) for one in shapes)
    if "--sequence-length" in given:
        if "--request-rate-range" in given:
            raise given.refuse("--sequence-length", "sequences need a closed loop", "use --concurrency-range")
        if "--sequence-length-variation" not in given:
            given.notes.append(
                "--sequence-length: all sequences have this length; perf_analyzer varies it by 20 % by default."
            )
        elif given["--sequence-length-variation"]:
            raise given.refuse("--sequence-length-variation", "all sequences have the same length", "set it to 0")
        data["sequence"] = given["--sequence-length"]
    elif "--num-of-sequences" in given:
        given.notes.append(
            "--num-of-sequences has no effect here: a closed loop has one sequence per request in flight."
        )
    return data


def _shape(given: Given, text: str) -> tuple[str, list[int]]:
    name, _, sizes = text.rpartition(":")
    try:
        return name, [int(size) for size in sizes.split(",")]
    except ValueError:
        raise given.refuse("--shape", f"{text!r} is not NAME:SIZE,SIZE ...", "correct it") from None


def _load(given: Given) -> dict[str, Any]:
    if given["--latency-threshold"]:
        raise given.refuse("--latency-threshold", "a range is measured to its end, whatever the latency", _SEARCH)
    load: dict[str, Any]
    if "--request-rate-range" in given:
        if "--concurrency-range" in given or "-t" in given:
            raise given.refuse("--request-rate-range", "it excludes a concurrency", "leave out one of them")
        load = {"type": given["--request-distribution"], "rate": _levels(given, "--request-rate-range")}
    else:
        level = given["-t"] if "-t" in given else _levels(given, "--concurrency-range")
        load = {"type": "closed", "concurrency": level, "ramp_up": 0}
    if count := given["--request-count"]:
        return load | {"requests": count + given["--warmup-request-count"]}
    if given["--measurement-mode"] == "count_windows":
        raise given.refuse(
            "--measurement-mode", "windows are times", "use time_windows, or --request-count for a fixed number"
        )
    window = given["--measurement-interval"]
    return load | {
        "stable": given["--stability-percentage"] / 100,
        "window": f"{window}ms",
        "duration": f"{window * given['--max-trials']}ms",
    }


def _levels(given: Given, option: str) -> int | float | str:
    """A range of levels, as a number if it has one level."""
    kind: type[int] | type[float] = float if option == "--request-rate-range" else int
    try:
        numbers = [kind(part) for part in str(given[option]).split(":")]
    except ValueError:
        numbers = []
    if not all(map(math.isfinite, numbers)):
        raise given.refuse(option, "a level is a finite number", "correct it")
    if not 1 <= len(numbers) <= 3:
        raise given.refuse(option, "a range is START:END:STEP", "correct it")
    if len(numbers) > 1 and numbers[1] == 0:
        raise given.refuse(option, "a range needs an end", _SEARCH)
    if len(numbers) == 1 or numbers[0] == numbers[1]:
        return numbers[0]
    return ":".join(f"{number:.15g}" for number in numbers)


def _report(given: Given) -> dict[str, Any]:
    report: dict[str, Any] = {"perf_csv": given["-f"]} if "-f" in given else {}
    if (percentile := given["--percentile"]) != -1:
        report["percentiles"] = sorted({50, 90, 95, 99, percentile})
        given.notes.append("--percentile: it is in the report, but the mean latency decides whether a level is stable.")
    return report
