"""Writes a folder with a tiny Llama of random weights and a tokenizer trained on invented words. Needs no network.

As with llama_cpp/model.py, special tokens and single bytes have no output weights: a response at temperature 0 consists
of words, and has the requested length.
"""

import sys
from itertools import product
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>"]
CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write(folder: Path, context: int, seed: int = 0) -> None:
    tokenizer = _tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL) + 256] = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = (f" {one}{two}{end}" for one, two, end in product(syllables, syllables[::5], ("", "mika", "rel", "s")))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(words, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=CHAT
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), context=int(sys.argv[2]))
