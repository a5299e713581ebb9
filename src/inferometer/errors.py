"""The errors that a user can mend.

Each is one line that says what is wrong, and one that says what to do next. The CLI prints it and exits with 2; no other
exception is expected to reach it.
"""


class UserError(Exception):
    """What is wrong (`what`), and what to do about it (`remedy`)."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} ({self.remedy})" if self.remedy else self.what

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str]]:
        return type(self), (self.what, self.remedy)
