"""The section `storage`: how to reach the object store of an `output` such as `s3://bucket/prefix`. It holds no credentials."""

import re
from typing import Annotated, Literal

from msgspec import Meta

from inferometer.config.fields import Seconds, Section
from inferometer.errors import UserError

SCHEMES = ("s3", "gs")
_LEAST_TIMEOUT = 1.0
_ONE_SLASH = re.compile(r"(s3|gs):/*(.*)")
"""The URL of a bucket that lacks a slash."""


class Storage(Section):
    local: Annotated[
        str,
        Meta(
            description="Folder in which a run is measured before it is uploaded. Its copy stays there, so an upload that fails can be repeated with `inferometer runs push`.",
            min_length=1,
        ),
    ] = "runs"
    endpoint: Annotated[
        str | None,
        Meta(
            description="URL of an S3 look-alike such as MinIO, or of an emulator: `http://127.0.0.1:9000`. Default: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for `s3://`, STORAGE_EMULATOR_HOST for `gs://`, else Amazon or Google. No credentials: they come from the environment and the usual files."
        ),
    ] = None
    region: Annotated[
        str | None,
        Meta(
            description="Region of an S3 bucket. Default: AWS_REGION or AWS_DEFAULT_REGION, else the store is queried for it."
        ),
    ] = None
    addressing: Annotated[
        Literal["auto", "virtual", "path"],
        Meta(
            description="Where an S3 request names the bucket: in the host name (`virtual`) or in the path (`path`). `auto`: in the host name on Amazon, in the path with an endpoint."
        ),
    ] = "auto"
    anonymous: Annotated[bool, Meta(description="Access a public bucket without credentials.")] = False
    timeout: Annotated[
        Seconds, Meta(description="Give up a transfer, and try it again, when nothing has moved for this long.")
    ] = Seconds(30)


def is_remote(output: str) -> bool:
    """Whether an output or the name of a run is a URL rather than a folder."""
    return "://" in output


def check_storage(output: str, storage: Storage) -> None:
    """Raise UserError for an output that is neither a folder nor a URL of a known object store, and for bad settings of `storage`."""
    if not output.strip():
        raise UserError(
            "the name of the folder is empty", "give a folder, such as runs, or s3://BUCKET/PREFIX", "output"
        )
    if storage.timeout < _LEAST_TIMEOUT:
        raise UserError("the timeout is too short", "give 1s or more, such as 30s", "storage.timeout")
    if is_remote(storage.local):
        raise UserError("must be a folder on this machine", "give a folder, such as runs", "storage.local")
    if is_remote(output):
        try:
            split_url(output)
        except UserError as error:
            error.key = "output"
            raise
    elif match := _ONE_SLASH.match(output):
        raise UserError(
            f"{output!r} is neither a folder nor the URL of a bucket",
            f"did you mean {match[1]}://{match[2]}?",
            "output",
        )
    check_endpoint(storage.endpoint)


def check_endpoint(endpoint: str | None) -> None:
    """Raise UserError if the endpoint is not an HTTP URL, or contains credentials."""
    if endpoint is None:
        return
    scheme, separator, rest = endpoint.partition("://")
    if "@" in rest:
        raise UserError(
            "contains credentials",
            "remove them from the URL, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            "storage.endpoint",
        )
    if not separator or scheme not in ("http", "https") or not rest.strip("/"):
        raise UserError(
            f"{endpoint!r} is not an HTTP URL", "write, for example, http://127.0.0.1:9000", "storage.endpoint"
        )


def split_url(url: str) -> tuple[str, str, str]:
    """Split `s3://bucket/prefix` into scheme, bucket and prefix. Raises UserError for everything else."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket:
        raise UserError(
            f"{scheme}://{bucket.rpartition('@')[2]}: a URL of an object store must not contain credentials",
            "remove them, and give them by environment variables or the usual files: see `inferometer docs storage`",
        )
    if scheme not in SCHEMES:
        raise UserError(
            f"{url}: {scheme}:// is not a kind of storage that is known",
            "write to a folder, to s3://BUCKET/PREFIX or to gs://BUCKET/PREFIX",
        )
    if not bucket or any(character in url for character in "?#\\ \n"):
        raise UserError(f"{url}: not the URL of a bucket", f"write {scheme}://BUCKET/PREFIX, without spaces, ? and #")
    return scheme, bucket, "/".join(part for part in prefix.split("/") if part)
