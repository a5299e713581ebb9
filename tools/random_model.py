"""Writes a model of a real size with random weights, and Inferometer's own tokenizer: for measuring engines where no model can be had.

    python tools/random_model.py llama-1b FOLDER     a Llama of 1.1 billion parameters, in bfloat16
    python tools/random_model.py bert-base FOLDER    an encoder of 110 million parameters, in float32

It needs torch and transformers, and no network. The weights are made on the GPU if there is one. The same seed gives the same weights on the
same device.

Of purely random weights, the two likeliest tokens are so close that rounding decides between them, and two correct engines disagree after
a few tokens. So the output layer of the Llama also favours one successor of each token, by about three standard deviations of the logits.
"""

import argparse
import json
from importlib.resources import files
from pathlib import Path

import torch
import transformers

CHAT = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
VOCABULARY = 32_000
"""Larger than the tokenizer's, as that of a real model."""
_FAVOUR = 12.0
"""How much a successor is favoured, in standard deviations of the output layer's weights."""


def llama() -> transformers.PreTrainedModel:
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    _favour_successors(model)
    model = model.to(torch.bfloat16)
    model.generation_config.eos_token_id = None
    return model


def _favour_successors(model: transformers.PreTrainedModel) -> None:
    """Make the embedding of the last token a part of the hidden state, and let the output layer read a successor from it."""
    embeddings, output = model.model.embed_tokens.weight, model.lm_head.weight
    with torch.no_grad():
        embeddings.normal_(0, 1)
        for layer in model.model.layers:  # what the layers add stays of the size of the embeddings
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
        successors = torch.randperm(len(output))
        direction = embeddings / embeddings.norm(dim=1, keepdim=True)
        output[successors] += _FAVOUR * output.std() * direction


def bert() -> transformers.PreTrainedModel:
    return transformers.BertModel(transformers.BertConfig(vocab_size=VOCABULARY))


MODELS = {"llama-1b": llama, "bert-base": bert}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = MODELS[options.name]()
    model.save_pretrained(options.folder)
    tokenizer = files("inferometer.workload").joinpath("builtin/tokenizer.json").read_bytes()
    (options.folder / "tokenizer.json").write_bytes(tokenizer)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT, "model_max_length": 4096}
    (options.folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    print(f"{options.folder}: {sum(each.numel() for each in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
