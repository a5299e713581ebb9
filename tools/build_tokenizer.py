"""Builds the files in `src/inferometer/workload/builtin/`: the corpus, the tokenizer trained on it, and its counts.

    python tools/build_tokenizer.py [FOLDER]

The output is the same on every run: tests/workload/test_builtin.py trains again and compares.
"""

import json
import sys
from pathlib import Path

import build_corpus
import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8192
BUILTIN = Path(__file__).parents[1] / "src" / "inferometer" / "workload" / "builtin"


def train(texts: list[str]) -> str:
    """Train a byte-level BPE that splits words like GPT-2; return the text of its tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    saved = json.loads(tokenizer.to_str())
    merges = saved["model"]["merges"]
    # Use the older of the two notations for merges: it is shorter, and every release of `tokenizers` reads it.
    saved["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    return json.dumps(saved, ensure_ascii=False, separators=(",", ":")) + "\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    build_corpus.main(folder)
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("prose.txt", "other.txt")]
    (folder / "tokenizer.json").write_text(train(texts), encoding="utf-8", newline="\n")
    if folder == BUILTIN:
        from inferometer.workload.tokenizer import measure_builtin  # noqa: PLC0415 - it reads what was just written

        (folder / "counts.json").write_bytes(msgspec.json.encode(measure_builtin()) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else BUILTIN)
