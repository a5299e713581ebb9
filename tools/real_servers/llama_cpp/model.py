"""Writes a tiny Llama-shaped GGUF with random weights and a hand-written tokenizer. Needs no network.

The vocabulary is in the style of SentencePiece: 3 special tokens, 256 bytes, printable ASCII, and invented words such as
`▁lomika`. Random weights are enough to make a server do all of its work. Two things are certain, so that tests can rely on
them: a response at temperature 0 consists of words (special tokens and bytes have no output weights, so their logits are 0
and that of some word is higher), and therefore it has the requested length, unless the request's `logit_bias` raises EOS.
"""

from itertools import product
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

BOS, EOS = 1, 2
CONTEXT = 512
WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 64, 2, 4, 2, 128
CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

Token = tuple[str, float, gguf.TokenType]


def write(path: Path, name: str, parallel: int, seed: int = 0) -> None:
    """Write the file to `path`, for `parallel` contexts of CONTEXT tokens."""
    tokens = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_context_length(CONTEXT * parallel)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _, _ in tokens])
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([int(kind) for _, _, kind in tokens])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT)
    for tensor, values in weights(len(tokens), seed).items():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabulary() -> list[Token]:
    """Special tokens, bytes, single characters, and words with all pieces that are merged into them."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    pieces = [
        *(f"▁{one}" for one in syllables),
        *(f"▁{one}{two}" for one, two in product(syllables[::3], syllables[::5])),
        *(f"▁{one}{two}{three}" for one, two, three in product(syllables[::3], syllables[::5], ("mika", "rel", "s"))),
    ]
    special = [("<unk>", 0.0, gguf.TokenType.UNKNOWN), ("<s>", 0.0, gguf.TokenType.CONTROL), ("</s>", 0.0, gguf.TokenType.CONTROL)]  # fmt: skip
    octets = [(f"<0x{octet:02X}>", 0.0, gguf.TokenType.BYTE) for octet in range(256)]
    letters = ["▁", *(chr(code) for code in range(33, 127))]
    known = [*letters, *syllables, *pieces]
    return [*special, *octets, *((text, -float(rank), gguf.TokenType.NORMAL) for rank, text in enumerate(known))]


def weights(vocabulary_size: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random tensors with the names that llama.cpp expects."""
    generator = np.random.default_rng(seed)

    def random(*shape: int) -> NDArray[np.float32]:
        return (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    output = 8 * random(vocabulary_size, WIDTH)
    output[: 3 + 256] = 0
    tensors = {"token_embd.weight": random(vocabulary_size, WIDTH), "output_norm.weight": ones, "output.weight": output}
    kv_width = WIDTH * KV_HEADS // HEADS
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": ones,
            f"blk.{layer}.attn_q.weight": random(WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": random(kv_width, WIDTH),
            f"blk.{layer}.attn_v.weight": random(kv_width, WIDTH),
            f"blk.{layer}.attn_output.weight": random(WIDTH, WIDTH),
            f"blk.{layer}.ffn_norm.weight": ones,
            f"blk.{layer}.ffn_gate.weight": random(FEED_FORWARD, WIDTH),
            f"blk.{layer}.ffn_up.weight": random(FEED_FORWARD, WIDTH),
            f"blk.{layer}.ffn_down.weight": random(WIDTH, FEED_FORWARD),
        }
    return tensors
