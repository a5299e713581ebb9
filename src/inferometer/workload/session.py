"""Sessions: the turns of a conversation, each prompt containing the responses to the turns before it.

With a limited context, the oldest turns are dropped until the prompt and the requested response fit; the system prompt and the newest
message always stay. The tokens of a prompt are those that the server counted in the turn before, plus those of the new turn by the
workload's tokenizer; or the tokenizer's throughout, if the server reports no usage.
"""

from inferometer.types import History, Request, Session, Turn, TurnResponse

_CHARS_PER_TOKEN = 3
"""Used for texts whose tokens nobody has counted. Most tokenizers have more characters per token, so this counts too many."""


def converse(first: Request, history: History, context: int = 0) -> Session:
    """Yield the requests of a session, and be sent the response to each. The first is `first` itself.

    `history` is an empty one for the API's requests; `context` is the largest number of tokens of a prompt and its response (0: no
    limit).
    """
    tokens = _Tokens(first)
    n_out = first.n_out
    response = yield first
    if first.later:
        _begin(history, first.payload)
    for number, turn in enumerate(first.later, 1):
        if response.is_failed:
            history.withdraw()
            tokens.withdraw()
        else:
            history.respond(response.text if turn.response is None else turn.response, turn.response is None)
            tokens.ended(response, turn, n_out)
        if turn.payload is None:
            history.add(turn.messages)
            tokens.add(turn)
            while context and tokens.turns > 1 and tokens.total + turn.n_out > context:
                history.drop_oldest()
                tokens.drop_oldest()
        else:
            _begin(history, turn.payload)
            tokens = _Tokens(Request(0, turn.payload, turn.n_in, turn.n_out))
        is_text = turn.payload is None or not _is_ids(turn.payload)
        n_out = turn.n_out
        response = yield Request(
            0,
            history.json() if is_text else turn.payload,  # type: ignore[arg-type]
            tokens.counted,
            n_out,
            turn=number,
            think=turn.think,
            options=first.options,
        )


def _begin(history: History, payload: object) -> None:
    if isinstance(payload, str | list):
        history.begin([] if _is_ids(payload) else payload)  # a prompt of token ids has no text that could be continued


def _is_ids(payload: object) -> bool:
    return isinstance(payload, list) and bool(payload) and isinstance(payload[0], int)


class _Tokens:
    """The tokens of a prompt: of the system prompt, and of each turn with the response to it."""

    def __init__(self, first: Request) -> None:
        self._system = first.n_system
        own = first.n_in - first.n_system if first.n_in else 0
        self._sizes = [own or _guess_payload(first.payload)]  # as well as they are known
        self._counted_system = first.n_system
        self._counted: list[int | None] = [own or None]  # by the workload's tokenizer alone; None: not counted

    @property
    def turns(self) -> int:
        return len(self._sizes)

    @property
    def total(self) -> int:
        return self._system + sum(self._sizes)

    @property
    def counted(self) -> int:
        """Tokens of the whole prompt by the workload's tokenizer; 0 if it did not count all of it."""
        known = [count for count in self._counted if count is not None]
        return self._counted_system + sum(known) if len(known) == len(self._counted) else 0

    def ended(self, response: TurnResponse, following: Turn, n_out: int) -> None:
        """Correct the latest turn by the server's count of its prompt, and add the response to it."""
        if response.n_in >= 0:
            more = response.n_in - self.total
            if self.turns == 1:  # the server counts the chat template, too
                self._system = max(self._system + more, 0)
            else:
                self._sizes[-1] = max(self._sizes[-1] + more, 0)
        if following.response is None:
            live = max(response.n_out - response.reasoning, 0) if response.n_out >= 0 else n_out
            self._sizes[-1] += live or _guess(response.text)
            self._counted[-1] = None
        else:
            self._sizes[-1] += following.n_response or _guess(following.response)
            counted = self._counted[-1]
            is_known = counted is not None and following.n_response
            self._counted[-1] = (counted or 0) + following.n_response if is_known else None

    def add(self, turn: Turn) -> None:
        self._sizes.append(turn.n_in or _guess_payload(turn.messages))
        self._counted.append(turn.n_in or None)

    def withdraw(self) -> None:
        self._sizes.pop()
        self._counted.pop()

    def drop_oldest(self) -> None:
        del self._sizes[0], self._counted[0]


def _guess(text: str) -> int:
    return len(text) // _CHARS_PER_TOKEN + 1


def _guess_payload(payload: object) -> int:
    """Tokens of a prompt or of messages, without the system prompt."""
    if not isinstance(payload, list):
        return _guess(str(payload))
    if _is_ids(payload):
        return len(payload)
    return sum(_guess(str(each.get("content", ""))) for each in payload if each.get("role") != "system")
