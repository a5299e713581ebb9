"""What the tests wait with does not take an old answer for the last one either."""

import pytest
import waiting


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


def test_an_answer_before_a_standstill_is_not_taken_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(), [1, 1, 2]
    monkeypatch.setattr(waiting, "time", clock)

    def ask() -> int:
        clock.now += 0.2
        return said.pop(0) if len(said) > 1 else said[0]

    assert waiting.still(ask) == 2
