"""Language models from a folder (config.json, tokenizer.json, *.safetensors), run by Hugging Face's transformers.

The task is set by the parameter `task`, or else derived from the architecture in config.json:

    generate   text_input BYTES [1] -> text_output BYTES [1], decoupled: a piece of text per response (text/)
    embed      text BYTES [1]       -> embedding FP32 [D]: mean over the text's tokens; `normalize`=1: scaled to length 1
    classify   text BYTES [1]       -> scores FP32 [N], labels from id2label: softmax; sigmoid for multi-label models; the
                                       value itself if there is only one

Generation is batched continuously (text/): up to `max_batch` texts get a token per step (64 on CPUs, 128 on GPUs, fewer
if `kv_memory`, the share of the free memory for their keys and values, holds fewer: 0.5). Models that cannot be batched
so, for example with sliding windows, are computed one text after the other; a message at loading gives the reason.

Parameters: `dtype` (float32, bfloat16, float16; default: as stored on GPUs, float32 on CPUs), `threads`, `max_length`
(of a text with its response; longer texts to embed or classify are truncated; default: the model's own), `warmup`=0 (do
not warm up), `default_max_batch_size` (32; embed, classify). Code that comes with a model is never run, and weights are
read from safetensors only. Nothing is downloaded.
"""

import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Collection
from typing import Any

import torch
import transformers as hugging

from inferometer.serve.backends import configured
from inferometer.serve.backends.text import model as text_model
from inferometer.serve.backends.text.decoder import SeparateDecoder, SlotDecoder, Unfit
from inferometer.serve.backends.text.engine import Engine
from inferometer.serve.backends.text.model import LanguageModel
from inferometer.serve.backends.torch import device_of, use_threads
from inferometer.serve.models.types import Loaded, Loading, Parameters, Tensors
from inferometer.tensors import TensorSpec, from_numpy

GENERATE, EMBED, CLASSIFY = "generate", "embed", "classify"
TEXT = "text"
_BATCH = 32
_TOKENS = 128
_LENGTH = 4096
"""Maximum length of texts if neither the model nor the configuration sets one."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TASKS = {
    GENERATE: ("AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel")),
    CLASSIFY: ("AutoModelForSequenceClassification", ("ForSequenceClassification",)),
    EMBED: ("AutoModel", ("Model", "ForMaskedLM")),
}
"""The class that loads a model for a task, and how the names of its architectures end; the first that matches counts."""
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_log = logging.getLogger("inferometer.serve")
_UNBOUNDED = 1_000_000  # tokenizers without a maximum length report 10^30


def load(loading: Loading) -> Loaded:
    folder = loading.folder
    if folder is None or not (folder / "config.json").is_file():
        raise loading.error(f"there is no config.json in {folder}", "add the model's files")
    hugging.utils.logging.set_verbosity_error()
    hugging.utils.logging.disable_progress_bar()

    def read(kind: Any, **more: Any) -> Any:
        remedy = "it must contain config.json, tokenizer.json and *.safetensors, as written by save_pretrained"
        options = {"local_files_only": True, "trust_remote_code": False, **more}
        return configured.attempt(loading, folder, remedy, lambda: kind.from_pretrained(folder.resolve(), **options))

    config = read(hugging.AutoConfig)
    task = _task(loading, config)
    device = device_of(loading)
    more = {"dtype": _dtype(loading, device), "use_safetensors": True, "output_loading_info": True}
    model, report = read(getattr(hugging, _TASKS[task][0]), config=config, **more)
    _check_whole(loading, report["missing_keys"])
    tokenizer = read(hugging.AutoTokenizer)
    threads, longest = configured.whole(loading, "threads", 0), _longest(loading, config, tokenizer)
    language = LanguageModel(loading.name, model.eval().to(device), tokenizer, longest, threads)
    return {GENERATE: _generation, EMBED: _embedding, CLASSIFY: _classification}[task](loading, language)


# --- the folder ------------------------------------------------------------------------------------------------------


def _check_whole(loading: Loading, missing: Collection[str]) -> None:
    """Refuse incomplete checkpoints: transformers would invent the missing weights. (An embedding needs no pooler.)"""
    lacking = sorted(name for name in missing if not name.startswith("pooler.") and ".pooler." not in name)
    if lacking:
        what = f"the weights lack {lacking[0]} and {len(lacking) - 1} more"
        raise loading.error(what, "check that parameter task names the right task")


def _task(loading: Loading, config: Any) -> str:
    wanted, names = loading.parameter("task"), tuple(config.architectures or ())
    if wanted in _TASKS:
        return wanted
    remedy = f"set parameter task to one of {', '.join(_TASKS)}"
    if wanted:
        raise loading.error(f"unknown task {wanted!r:.60}", remedy)
    if getattr(config, "is_encoder_decoder", False) or any(name.endswith("ForConditionalGeneration") for name in names):
        what = f"{', '.join(names)} is not supported: it is an encoder-decoder model"
        raise loading.error(what, "use a decoder-only model")
    for name, (task, (_, ends)) in itertools.product(names, _TASKS.items()):
        if name.endswith(ends):
            return task
    raise loading.error(f"its architecture ({', '.join(names) or 'none'}) does not determine its task", remedy)


def _dtype(loading: Loading, device: Any) -> Any:
    wanted = loading.parameter("dtype", "auto")
    if wanted not in _DTYPES:
        raise loading.error(f"unknown dtype {wanted!r:.60}", f"use one of {', '.join(_DTYPES)}")
    if wanted == "auto":
        return "auto" if device.type == "cuda" else torch.float32
    return getattr(torch, wanted)


def _longest(loading: Loading, config: Any, tokenizer: Any) -> int | None:
    configured_length = configured.whole(loading, "max_length", 0)
    limits = [configured_length or None, getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    return min((limit for limit in limits if limit and limit < _UNBOUNDED), default=None)


# --- generation ------------------------------------------------------------------------------------------------------


def _generation(loading: Loading, language: LanguageModel) -> Loaded:
    if loading.config.max_batch_size:
        remedy = "set it to 0; the parameter max_batch sets how many texts are generated at the same time"
        what = f"max_batch_size is {loading.config.max_batch_size}, but requests for text are not joined"
        raise loading.error(what, remedy)
    if not language.tokenizer.is_fast:
        raise loading.error(f"there is no tokenizer.json in {loading.folder}", "convert its tokenizer")
    text_model.declare(loading)
    most, ends = configured.whole(loading, "max_tokens", _TOKENS), _ends(language)
    prepare = functools.partial(_decoder, loading, language, ends)
    # Without transformers' own layer, decoding is 5 x faster.
    decode = functools.partial(language.tokenizer.backend_tokenizer.decode, skip_special_tokens=True)
    language.engine = Engine(prepare, decode, ends, torch.inference_mode())
    language.can_generate, language.max_len = True, language.engine.length
    return Loaded(begin=text_model.begin(language, most), slots=0, text=language, close=language.close)


def _ends(language: LanguageModel) -> frozenset[int]:
    """Return the tokens that end a text."""
    sources = getattr(language.model, "generation_config", None), language.model.config, language.tokenizer
    ends = (getattr(source, "eos_token_id", None) for source in sources)
    found = next((end for end in ends if end is not None), ())
    return frozenset(found if isinstance(found, list | tuple) else (found,))


def _decoder(loading: Loading, language: LanguageModel, ends: frozenset[int]) -> Any:
    """Return the decoder, warmed up; called in the engine's thread."""
    device, length = language.model.device, language.longest or _LENGTH
    use_threads(language.threads)
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(device.index or 0)  # graphs are captured on the thread's current device
    slots, share = configured.whole(loading, "max_batch", 128 if is_gpu else 64), loading.parameter("kv_memory", "0.5")
    if not re.fullmatch(r"0?\.\d+|1(\.0*)?", share):
        raise loading.error(f"parameter kv_memory must be in (0, 1] (got {share!r:.60})")
    free = torch.cuda.mem_get_info(device.index or 0)[0] if is_gpu else _PAGE * os.sysconf("SC_AVPHYS_PAGES")
    given = (language.model, ends, slots or 1, length)
    try:
        decoder: Any = SlotDecoder(*given, memory=float(share) * free)
    except torch.OutOfMemoryError as error:
        what = f"out of memory for texts of {length} tokens: {configured.one_line(error)}"
        raise loading.error(what, "lower the parameters max_batch, max_length or kv_memory") from None
    except Exception as error:
        why = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {configured.one_line(error)}"
        _log.warning("model %s: texts are computed one after the other: %s", loading.name, why)
        decoder = SeparateDecoder(*given)
    if configured.is_on(loading, "warmup", True):
        decoder.warm_up(_log)
    return decoder


# --- texts in batches ------------------------------------------------------------------------------------------------


def _batched(loading: Loading, language: LanguageModel, output: TensorSpec) -> None:
    """Complete the configuration of a model that takes texts in batches."""
    if not loading.config.max_batch_size and not loading.config.input:
        configured.batch_by_default(loading, _BATCH)
    configured.declare(loading, loading.config.input, [TensorSpec(TEXT, "BYTES", (1,))])
    configured.declare(loading, loading.config.output, [output])
    tokenizer, config = language.tokenizer, language.model.config
    if tokenizer.pad_token is None:  # any token will do: the attention mask hides it
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id


def _runner(language: LanguageModel, output: str, compute: Callable[[Any], Any]) -> Loaded:
    """Return the loaded model; `compute` makes rows of numbers from the tokens."""
    more = {"padding": True, "truncation": language.longest is not None, "max_length": language.longest}

    def run(inputs: Tensors, parameters: Parameters) -> Tensors:
        use_threads(language.threads)
        texts = configured.texts(TEXT, inputs[TEXT])
        with torch.inference_mode():
            tokens = language.tokenizer(texts, return_tensors="pt", **more).to(language.model.device)
            rows = compute(tokens).to(torch.float32).cpu().numpy()
        batch = inputs[TEXT].shape[:-1]
        return {output: from_numpy(output, rows.reshape(*batch, rows.shape[-1]), "FP32")}

    return Loaded(run=run)


def _embedding(loading: Loading, language: LanguageModel) -> Loaded:
    _batched(loading, language, TensorSpec("embedding", "FP32", (int(language.model.config.hidden_size),)))
    unit = configured.is_on(loading, "normalize")

    def compute(tokens: Any) -> Any:
        hidden = language.model(**tokens).last_hidden_state.to(torch.float32)
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(mean, dim=-1) if unit else mean

    def vectors(inputs: list[list[int]]) -> Any:
        use_threads(language.threads)
        with torch.inference_mode():
            tokens = language.tokenizer.pad({"input_ids": inputs}, return_tensors="pt").to(language.model.device)
            return list(compute(tokens).cpu().numpy())

    language.vectors, language.can_embed = vectors, True
    loaded = _runner(language, "embedding", compute)
    loaded.text, loaded.close = language, language.close
    return loaded


def _classification(loading: Loading, language: LanguageModel) -> Loaded:
    config = language.model.config
    count = int(config.num_labels)
    _batched(loading, language, TensorSpec("scores", "FP32", (count,)))
    for one in loading.config.output:
        one.label_filename = one.label_filename or "config.json"  # id2label: shows clients that there are labels

    def compute(tokens: Any) -> Any:
        logits = language.model(**tokens).logits.to(torch.float32)
        if config.problem_type == "multi_label_classification":
            return logits.sigmoid()
        return logits.softmax(-1) if count > 1 and config.problem_type != "regression" else logits

    loaded = _runner(language, "scores", compute)
    loaded.labels = {"scores": tuple(str(config.id2label.get(i, i)) for i in range(count))}
    return loaded
