"""The console that everything is printed with: only its own styles and movements reach the terminal as escape sequences."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from inferometer.printable import printable


class SafeConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_safe = segment.control or segment.text.isprintable()
            yield segment if is_safe else Segment(printable(segment.text), segment.style)
