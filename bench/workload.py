"""Generating prompts: how long it takes with the built-in tokenizer, and with others compared to one encoding of the same bytes.

    python -m bench workload

Targets: 100,000 prompts of 512 tokens with the built-in tokenizer in 10 s of CPU time; with any other tokenizer, at most 1.5 times
the CPU time of encoding the finished prompts once. The tokenizers are those of the tests, which are trained in a moment: like those of
GPT-2, BERT, T5, Llama 2 and Llama 3, and some whose tokens span words or that have no words of one token.
"""

import sys
import time

from bench.common import HERE, Line, show
from inferometer.workload import text
from inferometer.workload.tokenizer import Tokenizer, load

sys.path.insert(0, str(HERE.parent / "tests" / "workload"))
import small_tokenizers

TOKENS = 512
COUNT, BUILTIN_COUNT = 2_000, 100_000
ROUNDS = 3
HOLD_SECONDS, HOLD_RATIO = 10.0, 1.5


def main() -> int:
    text.texts(load(), [TOKENS], 0, [0])
    lines = []
    for what, generate in (("synthetic", text.texts), ("random words", text.random_words)):
        started = time.process_time()
        generate(load(), [TOKENS] * BUILTIN_COUNT, 0, range(BUILTIN_COUNT))
        seconds = time.process_time() - started
        is_judged = generate is text.texts
        lines.append(
            Line(
                f"{what}, {BUILTIN_COUNT:,} prompts, built-in tokenizer",
                f"{seconds:.2f} s",
                f"< {HOLD_SECONDS:.0f} s of CPU" if is_judged else "",
                seconds < HOLD_SECONDS if is_judged else None,
            )
        )
    for name in small_tokenizers.TOKENIZERS:
        tokenizer = load(small_tokenizers.saved(name))
        ratio, rate = _ratio(tokenizer)
        found = f"{ratio:.2f} x one encoding ({rate:,.0f} prompts/s of CPU)"
        lines.append(Line(f"synthetic, {name}", found, f"< {HOLD_RATIO} x", ratio < HOLD_RATIO))
    return show("workload", lines)


def _ratio(tokenizer: Tokenizer) -> tuple[float, float]:
    """CPU time of generating prompts / of encoding them, the best of some rounds; and prompts per second of CPU time."""
    text.texts(tokenizer, [TOKENS], 0, [0])  # measures the corpus once
    generating, encoding = [], []
    for number in range(ROUNDS):
        started = time.process_time()
        made = text.texts(tokenizer, [TOKENS] * COUNT, number, range(COUNT))
        generated = time.process_time()
        tokenizer.count_batch(made)
        generating.append(generated - started)
        encoding.append(time.process_time() - generated)
    return min(generating) / min(encoding), COUNT / min(generating)


if __name__ == "__main__":
    sys.exit(main())
