"""The tests' own waiting helper does not take an old value for the last one."""

import pytest
import waiting


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


def test_value_before_a_stall_is_not_taken_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, values = Clock(), [1, 1, 2]
    monkeypatch.setattr(waiting, "time", clock)

    def read() -> int:
        clock.now += 0.2
        return values.pop(0) if len(values) > 1 else values[0]

    assert waiting.still(read) == 2
