"""Sessions: the turns of a conversation, each prompt containing the responses to the turns before it."""

from typing import cast

from inferometer.types import Messages, Request, Session


def converse(first: Request) -> Session:
    """Yield the requests of a session, and be sent the response to each. The first is `first` itself."""
    response = yield first
    messages = first.payload if isinstance(first.payload, list) else [{"role": "user", "content": first.payload}]
    history = cast("Messages", messages)
    for number, turn in enumerate(first.later, 1):
        text = response.text if turn.response is None else turn.response
        history = [*history, {"role": "assistant", "content": text}, *turn.messages]
        payload = history if turn.payload is None else turn.payload
        # The tokens of a live response are not known: the server counts the prompt.
        response = yield Request(0, payload, 0, turn.n_out, turn=number, think=turn.think, options=first.options)
