"""Chat templates: the tokens that they add are counted, or included in the requested length."""

import json
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers

from inferometer import workload
from inferometer.config import load as configs
from inferometer.config.data import Prompts, Random, Synthetic
from inferometer.errors import UserError
from inferometer.workload import chat_template
from inferometer.workload.tokenizer import load

LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message['role'] }}<|end|>\n\n{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
INSTRUCTIONS = "{{ bos_token }}{% for message in messages %}[INST] {{ message['content'] }} [/INST]{% endfor %}"
NAMES = small_tokenizers.NAMES[1:]


def folder(tmp_path: Path, name: str, template: Any, *, as_file: bool = False) -> str:
    """A tokenizer's folder with this template."""
    path = Path(small_tokenizers.save(name, tmp_path))
    config = {"bos_token": {"content": "<s>"}, "chat_template": None if as_file else template}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if as_file:
        (path / "chat_template.jinja").write_text(template)
    return str(path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("template", [LLAMA_3, INSTRUCTIONS], ids=["llama 3", "instructions"])
@pytest.mark.parametrize("kind", [Synthetic, Random])
def test_the_whole_prompt_has_the_requested_length(tmp_path: Path, name: str, template: str, kind: Any) -> None:
    path = folder(tmp_path, name, template)
    tokenizer = load(path)
    render = chat_template.load(tokenizer).around
    requests = workload.build(kind(input=160, tokenizer=path, chat_template="include"), 0, range(20))
    assert tokenizer.count_batch(render(str(request.payload)) for request in requests) == [160] * 20
    assert {request.n_in for request in requests} == {160}


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_of_the_template_are_counted(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path, name, INSTRUCTIONS, as_file=True)
    tokenizer = load(path)
    render = chat_template.load(tokenizer).around
    requests = workload.build(Synthetic(input=64, tokenizer=path, chat_template="count"), 0, range(100))
    assert tokenizer.count_batch(str(request.payload) for request in requests) == [64] * 100
    assert tokenizer.count_batch(render(str(request.payload)) for request in requests) == [r.n_in for r in requests]
    assert requests[0].n_in > 64
    assert workload.build(Synthetic(input=64, tokenizer=path, chat_template="ignore"), 0, [0])[0].n_in == 64


def test_several_templates_by_name(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}!"}]
    assert chat_template.load(load(folder(tmp_path, "unigram", named))).around("word") == "word!"


def test_templates_have_the_functions_of_transformers(tmp_path: Path) -> None:
    source = "{{ strftime_now('%Y') | length }} {{ messages[0] | tojson }}{% for x in 'ab' %}{% if x == 'b' %}{% break %}{% endif %}{% endfor %}"
    rendered = chat_template.load(load(folder(tmp_path, "unigram", source))).around("é<")
    assert rendered == '4 {"role": "user", "content": "é<"}'


def test_auto_counts_if_the_api_is_chat_and_there_is_a_template(tmp_path: Path) -> None:
    with_template = folder(tmp_path, "unigram", LLAMA_3)
    without = small_tokenizers.saved("unigram")

    def decided(tokenizer: str | None, is_chat: bool) -> str:
        spec = workload.completed(Synthetic(tokenizer=tokenizer), is_chat)
        assert isinstance(spec, Synthetic)
        return spec.chat_template

    assert decided(with_template, True) == "count"
    assert decided(with_template, False) == decided(without, True) == decided(None, True) == "ignore"
    assert workload.completed(Prompts(prompts=["a"]), True) == Prompts(prompts=["a"])


def test_a_tokenizer_without_a_template_is_an_error() -> None:
    spec = Synthetic(tokenizer=small_tokenizers.saved("unigram"), chat_template="include")
    with pytest.raises(
        UserError, match=r"data\.chat_template: tokenizer .* has no chat template \(use a tokenizer folder"
    ):
        workload.build(spec, 0, [0])


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("{% if %}", "is not valid"),
        ("{{ raise_exception('no system role') }}", "rejects the messages: no system role"),
        ("{{ messages.append(1) }}", "rejects the messages: .*unsafe|rejects the messages"),
        ("{{ ''.__class__.__mro__ }}", "rejects the messages"),
    ],
)
def test_a_template_that_fails_is_an_error(tmp_path: Path, source: str, wrong: str) -> None:
    path = folder(tmp_path, "unigram", source)
    with pytest.raises(UserError, match=wrong):
        workload.build(Synthetic(input=64, tokenizer=path, chat_template="include"), 0, [0])


def test_a_length_below_that_of_the_template_is_an_error(tmp_path: Path) -> None:
    path = folder(tmp_path, "unigram", LLAMA_3)
    with pytest.raises(
        UserError, match=r"data\.input: a prompt of 4 tokens has no room for text: the chat template adds"
    ):
        workload.build(Synthetic(input=4, tokenizer=path, chat_template="include"), 0, [0])


def test_an_api_without_a_template_is_an_error() -> None:
    tree = {"server": {"url": "http://h:1", "api": "completions"}, "data": {"chat_template": "include"}}
    with pytest.raises(UserError, match=r"data\.chat_template: completions requests have no chat template"):
        configs.from_mapping(tree)
