"""Traffic classes: several kinds of requests in one run."""

from typing import Annotated, Any

from msgspec import Meta, field

from inferometer.config.data.datasets import Csv, Hub, Jsonl, OpenAiBatch, Parquet, Prompts, PythonCode, ShareGpt
from inferometer.config.data.generated import Random, SharedPrefix, Synthetic
from inferometer.config.data.sessions import Conversation
from inferometer.config.data.tensors import Images, Messages, Tensors
from inferometer.config.data.traces import Trace
from inferometer.config.fields import Positive, Section

Unmixed = (
    Synthetic | Random | SharedPrefix | Conversation
    | Prompts | Jsonl | ShareGpt | Csv | Parquet | Hub | OpenAiBatch | PythonCode
    | Trace | Tensors | Images | Messages
)  # fmt: skip
"""Every kind of data but a mix."""


class TrafficClass(Section):
    """One class of requests."""

    name: Annotated[
        str, Meta(description="Name of the class in reports. No two classes may have the same.", min_length=1)
    ]
    data: Annotated[Unmixed, Meta(description="What its requests contain, written as if it were alone.")]
    weight: Annotated[
        Positive,
        Meta(
            description="Its share of the requests, and so of the rate, relative to the other classes. With sessions: of the sessions."
        ),
    ] = 1.0
    model: Annotated[
        str | None,
        Meta(
            description="Model or LoRA adapter that its requests name. Default: `server.model`. APIs with the model in the path (KServe over HTTP, `generate`) have one model per run."
        ),
    ] = None
    headers: Annotated[
        dict[str, str],
        Meta(
            description="Additional headers (gRPC: metadata), which override those of `server.headers`. Their values are not stored."
        ),
    ] = field(default_factory=dict)
    body: Annotated[
        dict[str, Any],
        Meta(
            description="Additional body fields, such as `{priority: 1}`, which override those of `server.body`; KServe: parameters of the request."
        ),
    ] = field(default_factory=dict)
    slo: Annotated[
        str | list[str],
        Meta(
            description="Service level objectives of this class, which are judged by its requests alone. Those in `slo` are judged by all requests."
        ),
    ] = field(default_factory=list)

    @property
    def slos(self) -> list[str]:
        return [self.slo] if isinstance(self.slo, str) else self.slo


class Mix(Section, tag_field="type", tag="mix"):
    """Several classes of requests in one run, each with its own data and its own rows in the report."""

    classes: Annotated[list[TrafficClass], Meta(description="The classes.", min_length=1)]


def class_headers(data: Unmixed | Mix) -> tuple[dict[str, str], ...]:
    """The headers of each traffic class; none if there are no classes."""
    return tuple(class_.headers for class_ in data.classes) if isinstance(data, Mix) else ()
