"""Tokenizers from the Hugging Face hub: its files are downloaded to the hub's cache, and read from there."""

from pathlib import Path

from inferometer.errors import UserError
from inferometer.workload.encodings import files
from inferometer.workload.tokenizer import KEY, Tokenizer

FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tekken.json", "tokenizer.model"]
_REMEDY = "check the name and the connection; set HF_TOKEN for a model with restricted access; or give a local folder"


def load(name: str) -> Tokenizer:
    """Load the tokenizer of `org/name` or `org/name@revision`."""
    repository, _, revision = name.partition("@")
    return files.load(str(download(repository, revision or None)))


def download(repository: str, revision: str | None) -> Path:
    """Download the files of a tokenizer, unless they are in the cache, and return their folder."""
    try:
        import huggingface_hub  # noqa: PLC0415
    except ImportError:
        raise UserError(
            f"tokenizer {repository} is not a local path, and getting it from the hub needs the library huggingface_hub",
            "pip install 'inferometer[hub]', or give a local folder with a tokenizer.json",
            key=KEY,
        ) from None
    try:
        return Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=FILES))
    except Exception as error:  # the library passes on those of several HTTP clients
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"tokenizer {repository} is neither a local path nor available from the hub: {reason[:200]}",
            _REMEDY,
            key=KEY,
        ) from None
