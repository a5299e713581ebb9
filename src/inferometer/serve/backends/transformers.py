"""Language models from a folder (config.json, tokenizer.json, *.safetensors), run by Hugging Face's transformers.

The task is set by the parameter `task`, or else derived from the architecture in config.json:

    generate   text_input BYTES [1] -> text_output BYTES [1], decoupled: a piece of text per response
    embed      text BYTES [1]       -> embedding FP32 [D]: the mean over the text's tokens
    classify   text BYTES [1]       -> scores FP32 [N], with the labels of id2label

Generation is batched continuously (text/). Models that cannot be batched so, for example with sliding windows, are
computed one text after the other. docs/how-to/serve-your-model.md describes the parameters. Code that comes with a
model is never run, weights are read from safetensors only, and nothing is downloaded.
"""

import functools
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import torch
import transformers as hugging

from inferometer.serve.backends import configured
from inferometer.serve.backends.text.decoder import Decoder, SlotDecoder
from inferometer.serve.backends.text.engine import Engine
from inferometer.serve.backends.text.model import LanguageModel, declare
from inferometer.serve.backends.torch import device_of, use_threads
from inferometer.serve.models.types import Loaded, Loading, Parameters, Tensors, reason
from inferometer.tensors import TensorSpec, from_numpy

TEXT = "text"
_log = logging.getLogger("inferometer.serve")


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
    task, device = _task(loading, config), device_of(loading)
    dtype = loading.parameter("dtype", "auto" if device.type == "cuda" else "float32")
    kind, _, loaded = _TASKS[task]
    model, report = read(kind, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True)
    # transformers would invent the missing weights. (An embedding needs no pooler.)
    if missing := sorted(name for name in report["missing_keys"] if "pooler." not in name):
        what = f"the weights lack {missing[0]} and {len(missing) - 1} more"
        raise loading.error(what, "check that parameter task names the right task")
    tokenizer, configured_length = read(hugging.AutoTokenizer), configured.whole(loading, "max_length", 0)
    limits = configured_length, getattr(config, "max_position_embeddings", None), tokenizer.model_max_length
    known = [limit for limit in limits if limit and limit < 1_000_000]  # tokenizers without a limit report 10^30
    length = min(known, default=4096 if task == "generate" else 1 << 30)  # generation reserves memory for it
    return loaded(loading, LanguageModel(loading.name, model.eval().to(device), tokenizer, length))


def _task(loading: Loading, config: Any) -> str:
    named, architectures = loading.parameter("task"), config.architectures or ()
    fitting = (task for name in architectures for task, (_, ends, _) in _TASKS.items() if name.endswith(ends))
    task = named or next(fitting, "")
    if task in _TASKS:
        return task
    what = f"unknown task {named!r:.60}" if named else f"its architecture ({', '.join(architectures)}) is not supported"
    raise loading.error(what, f"set parameter task to one of {', '.join(_TASKS)}, if the model can do that")


def _generation(loading: Loading, language: LanguageModel) -> Loaded:
    if loading.config.max_batch_size:
        remedy = "set it to 0; the parameter max_batch sets how many texts are generated at the same time"
        what = f"max_batch_size is {loading.config.max_batch_size}, but requests for text are not joined"
        raise loading.error(what, remedy)
    declare(loading)
    language.max_tokens = configured.whole(loading, "max_tokens", 128)
    language.engine = Engine(functools.partial(_decoder, loading, language), language.tokenizer.backend_tokenizer)
    return Loaded(begin=language.begin, slots=0, max_len=language.max_len, close=language.close)


def _decoder(loading: Loading, language: LanguageModel) -> Decoder:
    """Return the decoder, warmed up; called in the engine's thread."""
    model, length, device = language.model, language.max_len, language.model.device
    sources = getattr(model, "generation_config", None), model.config, language.tokenizer
    end = next((one for source in sources if (one := getattr(source, "eos_token_id", None)) is not None), ())
    ends = frozenset(end if isinstance(end, list | tuple) else (end,))
    use_threads(configured.whole(loading, "threads", 0))
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(device.index or 0)  # graphs are captured on the thread's current device
    slots = configured.whole(loading, "max_batch", 128 if is_gpu else 64)
    pages = os.sysconf("SC_AVPHYS_PAGES")
    free = torch.cuda.mem_get_info(device.index or 0)[0] if is_gpu else pages * os.sysconf("SC_PAGE_SIZE")
    share = loading.parameter("kv_memory", "0.5")
    if not re.fullmatch(r"0?\.\d+|1(\.0*)?", share):
        raise loading.error(f"parameter kv_memory must be a number between 0 and 1 (got {share!r:.60})")
    try:
        decoder = SlotDecoder(model, ends, slots or 1, length, memory=free * float(share))
    except torch.OutOfMemoryError as error:
        what = f"out of memory for texts of {length} tokens: {reason(error).message}"
        raise loading.error(what, "lower the parameters max_batch, max_length or kv_memory") from None
    except Exception as error:
        _log.warning("model %s: texts are computed one after the other: %s", loading.name, reason(error).message)
        return Decoder(model, ends, 1, length)
    if loading.parameter("warmup") != "0":
        decoder.warm_up()
    return decoder


def _embedding(loading: Loading, language: LanguageModel) -> Loaded:
    is_scaled = configured.whole(loading, "normalize", 0) > 0

    def compute(tokens: Any) -> Any:
        hidden = language.model(**tokens).last_hidden_state.to(torch.float32)
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(mean, dim=-1) if is_scaled else mean

    output = TensorSpec("embedding", "FP32", (int(language.model.config.hidden_size),))
    return _batched(loading, language, output, compute, max_len=language.max_len, run_texts=language.run_texts)


def _classification(loading: Loading, language: LanguageModel) -> Loaded:
    config, count = language.model.config, int(language.model.config.num_labels)

    def compute(tokens: Any) -> Any:
        logits = language.model(**tokens).logits.to(torch.float32)
        if config.problem_type == "multi_label_classification":
            return logits.sigmoid()
        return logits.softmax(-1) if count > 1 and config.problem_type != "regression" else logits

    labels = {"scores": tuple(str(config.id2label.get(i, i)) for i in range(count))}
    loaded = _batched(loading, language, TensorSpec("scores", "FP32", (count,)), compute, labels=labels)
    for one in loading.config.output:
        one.label_filename = one.label_filename or "config.json"  # id2label: shows clients that there are labels
    return loaded


def _batched(
    loading: Loading, language: LanguageModel, output: TensorSpec, compute: Callable[[Any], Any], **more: Any
) -> Loaded:
    """Return a model that takes texts in batches; `compute` makes a row of numbers from each text's tokens."""
    threads = configured.whole(loading, "threads", 0)
    if not loading.config.max_batch_size and not loading.config.input:
        configured.batch_by_default(loading, 32)
    configured.declare(loading, [TensorSpec(TEXT, "BYTES", (1,))], [output])
    tokenizer, config = language.tokenizer, language.model.config
    if tokenizer.pad_token is None:  # any token will do: the attention mask hides it
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id

    def vectors(inputs: list[list[int]]) -> Any:
        use_threads(threads)
        with torch.inference_mode():
            tokens = tokenizer.pad({"input_ids": inputs}, return_tensors="pt").to(language.model.device)
            return compute(tokens).cpu().numpy()

    def run(inputs: Tensors, parameters: Parameters) -> Tensors:
        texts = configured.texts(TEXT, inputs[TEXT])
        rows = vectors(tokenizer(texts, truncation=True, max_length=language.max_len)["input_ids"])
        shape = (*inputs[TEXT].shape[:-1], *output.shape)
        return {output.name: from_numpy(output.name, rows.reshape(shape), "FP32")}

    language.vectors = vectors
    return Loaded(run=run, **more)


_TASKS: dict[str, tuple[Any, tuple[str, ...], Callable[[Loading, LanguageModel], Loaded]]] = {
    "generate": (hugging.AutoModelForCausalLM, ("ForCausalLM", "LMHeadModel"), _generation),
    "classify": (hugging.AutoModelForSequenceClassification, ("ForSequenceClassification",), _classification),
    "embed": (hugging.AutoModel, ("Model", "ForMaskedLM"), _embedding),
}
"""By task: the class that reads its models, how the names of their architectures end (the first match counts), and what
makes an instance."""
