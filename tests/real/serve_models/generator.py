"""The tokens are the words of text_input, over and over, each with a space before it.

There are max_tokens of them (default 8), each after delay_ms (default 2). With fail_after, an error follows that many tokens.
"""

import time

import numpy as np

from inferometer.serve.models.types import Refused

WITHOUT = {"max_tokens": 8, "delay_ms": 2, "fail_after": -1}


def infer(inputs, parameters):
    words = inputs["text_input"][0].split() or [b"token"]
    wishes = {name: int(inputs[name][0]) if name in inputs else usual for name, usual in WITHOUT.items()}
    for index in range(wishes["max_tokens"]):
        time.sleep(wishes["delay_ms"] / 1000)
        if index == wishes["fail_after"]:
            raise Refused("INTERNAL", f"failed after {index} tokens")
        yield {"text_output": np.array([b" " + words[index % len(words)]], np.object_)}
