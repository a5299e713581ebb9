"""A Triton error code's name (INVALID_ARG, UNAVAILABLE, ...) returns an error with that code, RAISE raises; anything else is returned."""

from inferometer.serve.models.types import Refused

CODES = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}


def infer(inputs, parameters):
    word = inputs["INPUT0"][0].decode()
    if word == "RAISE":
        raise ValueError("told to raise")
    if word.isupper():
        raise Refused(CODES.get(word, word), f"told to fail with {word}")
    return {"OUTPUT0": inputs["INPUT0"]}
