"""Sessions: the turns of a conversation, each prompt containing the responses to the turns before it."""

from collections.abc import Callable, Sequence

from inferometer.types import Messages, Request, Session


def converse(turns: Sequence[str], n_in: int, n_out: int, think: int) -> Session:
    """Yield one chat request per turn, and be sent the response to each. `n_in`: tokens of the first one."""
    messages: Messages = []
    for turn, text in enumerate(turns):
        messages = [*messages, {"role": "user", "content": text}]
        known = n_in if turn == 0 else 0  # later ones are counted by the server: there is no time for it during the run
        response = yield Request(0, messages, known, n_out, turn=turn, think=think if turn else 0)
        messages = [*messages, {"role": "assistant", "content": response.text}]


def starting(turns: Sequence[str], n_in: int, n_out: int, think: int) -> Callable[[], Session]:
    return lambda: converse(turns, n_in, n_out, think)
