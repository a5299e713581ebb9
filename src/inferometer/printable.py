"""Text from outside, such as a server's error: what of it may be stored, and printed to a terminal."""

REMOVED = "(removed)"
"""Stands for a secret."""
SHORTEST_SECRET = 4


def printable(text: str) -> str:
    """The text without what a terminal would interpret: a server must not set its title, clear it or write to the clipboard."""
    kept = (
        letter if letter.isprintable() or letter in "\n\t" else " " if letter.isspace() else "\ufffd" for letter in text
    )
    return text if text.isprintable() else "".join(kept)


def hide(text: str, secrets: tuple[str, ...]) -> str:
    """`text` without the secrets, and without the start of one that was truncated."""
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    if "..." in text:
        for secret in secrets:
            for length in range(len(secret) - 1, SHORTEST_SECRET - 1, -1):
                text = text.replace(secret[:length] + "...", REMOVED)
    return text
