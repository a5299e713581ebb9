"""Synthetic prompts from a text file of the user's own: exact lengths, and a digest of the text rather than of its path."""

import gzip
from pathlib import Path

import pytest
import small_tokenizers

from inferometer import workload
from inferometer.config.data import Synthetic
from inferometer.errors import UserError
from inferometer.workload import text
from inferometer.workload.tokenizer import load

NAMES = small_tokenizers.NAMES
GERMAN = "Der Hase saß im Gras. Wer hätte das gedacht? Am Abend, als es dunkelte, ging er nach Hause!\n" * 30
JAPANESE = "雪が降っている。犬は庭で走り回り、猫はこたつで丸くなる。明日も寒いだろう。" * 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [GERMAN, JAPANESE, "word"], ids=["german", "japanese", "one word"])
def test_prompts_have_exactly_these_lengths(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text(content, encoding="utf-8")
    tokenizer = load(small_tokenizers.saved(name))
    wanted = [1, 3, 10, 64, 300]
    if name == "byte_level" and content == JAPANESE:  # its alphabet has no such bytes
        with pytest.raises(UserError, match=r"finds no tokens in .*corpus\.txt"):
            text.texts(tokenizer, wanted, 0, range(5), corpus=str(file))
        return
    made = text.texts(tokenizer, wanted, 0, range(5), corpus=str(file))
    assert tokenizer.count_batch(made) == wanted
    added = text.texts(tokenizer, wanted, 0, range(5), corpus=str(file), continues=True, purpose="more")
    for before, after, n in zip(made, text.fit(tokenizer, made, added, wanted), wanted, strict=True):
        assert tokenizer.encode(before + after)[:n] == tokenizer.encode(before)
        assert tokenizer.count(before + after) == 2 * n


def test_prompts_are_cut_from_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(GERMAN, encoding="utf-8")
    for request in workload.build(Synthetic(input=60, corpus=str(tmp_path / "corpus.txt")), 0, range(20)):
        body = " ".join(str(request.payload).split(" ")[text.HEAD :])
        assert body[:60] in " ".join((GERMAN * 2).split())
        assert body.startswith(("Der Hase", "Wer hätte", "Am Abend"))


def test_the_digest_is_that_of_the_text(tmp_path: Path) -> None:
    files = {"one.txt": GERMAN, "two.txt": GERMAN, "three.txt": GERMAN + "Ende."}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "four.gz").write_bytes(gzip.compress(GERMAN.encode()))
    one, two, three, four = (workload.digest(Synthetic(corpus=str(tmp_path / name)), 0) for name in (*files, "four.gz"))
    assert one == two == four
    assert len({one, three, workload.digest(Synthetic(), 0)}) == 3


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "cannot be read: No such file"),
        (b"", "has no words"),
        (b" \n\t", "has no words"),
        (b"caf\xe9", "is not UTF-8 text: byte 3"),
        (b"\x1f\x8b\x08nonsense", "cannot be decompressed"),
    ],
)
def test_a_file_without_text_is_an_error(tmp_path: Path, content: bytes | None, wrong: str) -> None:
    if content is not None:
        (tmp_path / "corpus").write_bytes(content)
    with pytest.raises(UserError, match=rf"data\.corpus: .*{wrong}"):
        workload.build(Synthetic(corpus=str(tmp_path / "corpus")), 0, [0])
