import subprocess
import sys
from pathlib import Path

import pytest
import small_tokenizers
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.workload.tokenizer import load


@given(st.text())
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    assert load().decode(load().encode(text)) == text


@given(st.lists(st.text()))
def test_a_batch_counts_like_its_texts_one_by_one(texts: list[str]) -> None:
    assert load().count_batch(texts) == [load().count(text) for text in texts]
    assert load().count_batch(texts) == [len(load().encode(text)) for text in texts]


def test_a_folder_and_the_file_in_it_are_the_same(tmp_path: Path) -> None:
    folder = small_tokenizers.save("unigram", tmp_path)
    assert load(folder).encode("the old captain") == load(f"{folder}/tokenizer.json").encode("the old captain")
    assert load(folder).name == folder
    assert load().name == "builtin"
    tokenizer = load(small_tokenizers.save("word_piece", tmp_path))
    assert tokenizer.count("the " * 100) == 100
    assert tokenizer.count_batch(["the", "the the"]) == [1, 2]
    assert load().ends(" the noun") == [4, 9]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer .*nowhere does not exist \(give a folder with a tokenizer.json"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        load(str(tmp_path))
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(UserError, match=r"tokenizer .*/tokenizer.json cannot be read: Is a directory"):
        load(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_a_file_that_is_not_a_tokenizer_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer\.json: "):
        load(str(tmp_path))


def test_the_tokenizers_library_is_imported_on_first_use() -> None:
    code = "import sys, inferometer.workload.tokenizer; assert 'tokenizers' not in sys.modules; inferometer.workload.tokenizer.load().count('a'); assert 'tokenizers' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
