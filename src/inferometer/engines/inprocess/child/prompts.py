"""From a prompt, chat messages or token ids to token ids, with the model's own tokenizer and chat template."""

from typing import Any

from inferometer.engines.inprocess.child.errors import Unusable
from inferometer.engines.inprocess.child.jobs import Request


class Prompts:
    """The prompts of a model."""

    def __init__(self, tokenizer: Any, context: int) -> None:
        self.tokenizer, self.context = tokenizer, context
        self.has_template = bool(getattr(tokenizer, "chat_template", None))

    def ids(self, request: Request, chat: bool) -> list[int]:
        """The token ids of a request. Raises Unusable when the model cannot take it."""
        prompt: Any = request.prompt
        if isinstance(prompt, str) and not chat:
            found = list(self.tokenizer(prompt)["input_ids"])
        elif isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            found = list(prompt)
        else:
            found = self._from_template([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        if not found:
            raise Unusable("the prompt has no tokens")
        if self.context and len(found) + max(request.n_out, 1) > self.context:
            raise Unusable(
                f"the prompt has {len(found)} tokens and {request.n_out} more are requested, but the model's context has only {self.context}"
            )
        return found

    def _from_template(self, messages: Any) -> list[int]:
        if not self.has_template:
            raise Unusable("the model has no chat template: use the API completions, or a model that has one")
        made = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
        return list(made["input_ids"] if hasattr(made, "keys") else made)

    def text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def limit(self, request: Request, n_in: int) -> int:
        """The most output tokens: those that are requested, or as many as the context has room for."""
        return request.n_out or max((self.context or 4096) - n_in, 1)


def trimmed(ids: list[int], ends: "set[int]") -> list[int]:
    """The ids before the first one that ends a text."""
    for index, one in enumerate(ids):
        if one in ends:
            return ids[:index]
    return ids
