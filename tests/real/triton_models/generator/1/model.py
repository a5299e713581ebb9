"""The tokens are the words of text_input, over and over, each with a space before it.

There are max_tokens of them (default 8), each after delay_ms (default 2). With fail_after, an error follows that many tokens.
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

WITHOUT = {"max_tokens": 8, "delay_ms": 2, "fail_after": -1}


class TritonPythonModel:
    def initialize(self, args):
        self.streams = set()

    def execute(self, requests):
        self.streams = {stream for stream in self.streams if stream.is_alive()}
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].split() or [b"token"]
            wishes = {name: number(request, name, usual) for name, usual in WITHOUT.items()}
            stream = threading.Thread(target=speak, args=(request.get_response_sender(), words), kwargs=wishes)
            stream.start()
            self.streams.add(stream)

    def finalize(self):
        for stream in self.streams:
            stream.join()


def number(request, name, usual):
    given = pb_utils.get_input_tensor_by_name(request, name)
    return usual if given is None else int(given.as_numpy()[0])


def speak(sender, words, max_tokens, delay_ms, fail_after):
    for index in range(max_tokens):
        time.sleep(delay_ms / 1000)
        if sender.is_cancelled():
            break
        if index == fail_after:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"failed after {index} tokens")))
            break
        token = np.array([b" " + words[index % len(words)]], np.object_)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", token)]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
