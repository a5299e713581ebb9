"""Background threads: how many there are, how results are reported, and what the process does not wait for."""

import asyncio
import threading
from typing import Any

import pytest

from inferometer.serve.offload import Threads, in_thread
from inferometer.timing.loop import run


def test_jobs_run_in_a_limited_number_of_threads():
    async def main() -> None:
        threads, results, workers = Threads(asyncio.get_running_loop(), 2, "some"), [], set()
        here, both = threading.current_thread(), threading.Barrier(2)
        done = asyncio.Event()

        def work(number: int) -> int:
            both.wait(30)  # two at a time, or it never ends
            workers.add(threading.current_thread().name)
            return number

        def tell(result: Any, error: BaseException | None) -> None:
            assert error is None
            assert threading.current_thread() is here
            results.append(result)
            if len(results) == 6:
                done.set()

        for number in range(6):
            threads.do(lambda number=number: work(number), tell)
        async with asyncio.timeout(30):
            await done.wait()
        assert sorted(results) == list(range(6))
        assert workers == {"some 1", "some 2"}
        threads.close()

    run(main())


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_an_exception_is_reported_and_its_thread_continues(error: BaseException):
    async def main() -> None:
        threads = Threads(asyncio.get_running_loop(), 1, "some")
        errors: list[BaseException | None] = []
        ended = asyncio.Event()

        def fail() -> None:
            raise error

        threads.do(fail, lambda _, why: errors.append(why))
        threads.do(lambda: None, lambda *_: ended.set())
        async with asyncio.timeout(30):
            await ended.wait()
        assert errors == [error]
        threads.close()

    run(main())


def test_the_result_for_a_caller_that_went_away_is_dropped():
    async def main() -> None:
        may_go, is_there, over = threading.Event(), threading.Event(), threading.Event()

        def work() -> int:
            is_there.set()
            may_go.wait(30)
            over.set()
            return 1

        task = asyncio.ensure_future(in_thread(work))
        while not is_there.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go.set()
        assert await in_thread(lambda a, b: a + b, 1, 2) == 3
        assert over.wait(30)

    run(main())
