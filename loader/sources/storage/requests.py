"""How a store is asked: in parallel, again where that may help, and never without an end.

One thread a process runs an event loop, in which all requests are made. The caller may be the loop
of a training run, which an interrupt may strike anywhere: it hands its requests over by
`call_soon_threadsafe`, and waits on a `SimpleQueue`.

A request has a deadline, for all its attempts together. What may pass is tried again after growing
pauses. A request that takes much longer than others of its size is sent a second time, and the
first answer counts.
"""

import asyncio
import logging
import os
import queue
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from statistics import median
from typing import Any, NamedTuple

from loader.sources.storage.problems import (
    Replaced,
    about_credentials,
    may_pass,
    problem,
    words_of,
)
from loader.sources.storage.stores import second_after_s, shown, split, store_of, timeout_s

logger = logging.getLogger(__name__)

_AT_ONCE = 256  # requests for little, so that those of a batch are made together
_LARGE_AT_ONCE = 16  # requests for a MiB or more, which take memory
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_SAME_AT_ONCE = 4  # the same request, sent again because it is slow
_SLOW = 3  # times the median, and at least `second_after_s`
_MIB = 2**20
_PAGE, _AZURE_PAGE = 1000, 5000  # of a listing: as many objects as one request gives at most

Job = Callable[[], Coroutine[Any, Any, Any]]

_counts = {"calls": 0, "bytes": 0, "retries": 0, "second_requests": 0}  # of the loop's thread
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process
_times: dict[int, deque[float]] = {}  # that requests took, by how much they were for


class Span(NamedTuple):
    """Some bytes of a file that has this version and this size. Without a size, all of it."""

    path: str
    begin: int
    end: int
    version: str = ""
    size: int = -1


class Found(NamedTuple):
    """What a store says of an object."""

    path: str
    size: int
    version: str


def counts() -> dict[str, int]:
    """What this process has asked of stores so far."""
    return dict(_counts)


def read_spans(spans: Sequence[Span]) -> list[Any]:
    """The bytes of each of these, as buffers; all are asked for at once."""
    stores = _stores_of([span.path for span in spans])
    return _run([lambda span=span: _read(stores, span) for span in spans])


def look_up(paths: Sequence[str]) -> list[Found]:
    """The sizes and versions of these objects, each asked for by its address."""
    stores = _stores_of(paths)
    return _run([lambda path=path: _look_up(stores, path) for path in paths])


def list_below(root: str, folder: str) -> list[Found]:
    """All objects below a folder, in the order of their keys."""
    store = store_of(root)
    (found,) = _run([lambda: _list(store, root, folder)])
    return found


def version_of(meta: Any) -> str:
    """What tells an object from another one of its name."""
    return meta["e_tag"] or f"of {meta['last_modified'].isoformat()}"


def _stores_of(paths: Sequence[str]) -> dict[str, Any]:
    return {root: store_of(root) for root in {split(path)[0] for path in paths}}


async def _read(stores: dict[str, Any], span: Span) -> Any:
    root, key = split(span.path)
    store, length = stores[root], span.end - span.begin
    options: dict[str, Any] = {"range": (span.begin, span.end)}
    if span.version and not span.version.startswith("of "):
        options["if_match"] = span.version

    async def attempt() -> Any:
        answer = await store.get_async(key, options=options)
        meta = answer.meta
        if span.version not in ("", version_of(meta)) or span.size not in (-1, meta["size"]):
            raise Replaced
        content = await answer.bytes_async()
        _counts["bytes"] += len(content)
        if len(content) != length:
            raise ConnectionError(f"{length} bytes were asked for and {len(content)} came")
        return content

    return await _answered(attempt, span.path, length)


async def _look_up(stores: dict[str, Any], path: str) -> Found:
    root, key = split(path)

    async def attempt() -> Any:
        try:
            return await stores[root].head_async(key)
        except FileNotFoundError:
            await stores[root].get_async(key)  # which says in its answer what is not there
            raise

    meta = await _answered(attempt, path)
    return Found(path, meta["size"], version_of(meta))


async def _list(store: Any, root: str, folder: str) -> list[Found]:
    found: list[Found] = []
    size = _AZURE_PAGE if root.startswith("az:") else _PAGE

    async def attempt() -> None:
        found.clear()
        pages = store.list(folder or None, chunk_size=size)
        while True:
            try:
                page = await asyncio.wait_for(anext(pages), timeout_s())
            except StopAsyncIteration:
                return
            found.extend(Found(m["path"], m["size"], version_of(m)) for m in page)
            _counts["calls"] += len(found) > len(page)  # the first is counted already

    where = f"{root}/{folder}" if not root.endswith("/") else f"{root}{folder}"
    await _answered(attempt, where, deadline=False)
    return sorted(found)


async def _answered(
    attempt: Callable[[], Awaitable[Any]], path: str, length: int = 0, *, deadline: bool = True
) -> Any:
    """What an attempt gives, as soon as one succeeds; what is wrong, if none does in time."""
    async with _slots(length >= _MIB):
        clock = asyncio.get_running_loop().time
        seconds = timeout_s()
        began_s, pause_s = clock(), _FIRST_PAUSE_S
        end_s = began_s + seconds
        while True:
            left_s = end_s - clock()
            try:
                if not deadline:  # each part of it has its own
                    _counts["calls"] += 1
                    return await attempt()
                return await _first_answer(attempt, length, left_s)
            except Exception as error:
                if about_credentials(error):
                    end_s = min(end_s, began_s + seconds / 6)
                if not may_pass(error) or clock() + pause_s >= end_s:
                    raise problem(error, path, seconds) from None  # it may hold a secret
                _counts["retries"] += 1
                logger.debug("%s is asked for again: %s", shown(path), words_of(error))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _first_answer(attempt: Callable[[], Awaitable[Any]], length: int, left_s: float) -> Any:
    """What the attempt gives, or another one: one more begins whenever no answer came for long."""
    clock = asyncio.get_running_loop().time
    began_s, times = clock(), _times.setdefault((length >> 16).bit_length(), deque(maxlen=64))
    least_s = second_after_s()
    patience_s = least_s * (1 + length // _MIB)
    if len(times) > 2:
        patience_s = max(_SLOW * median(times), least_s)
    under_way: set[asyncio.Future[Any]] = {asyncio.ensure_future(_counted(attempt))}
    try:
        while True:
            left = began_s + left_s - clock()
            wait_s = patience_s if len(under_way) < _SAME_AT_ONCE else left
            done, under_way = await asyncio.wait(
                under_way, timeout=min(wait_s, max(0.0, left)), return_when=asyncio.FIRST_COMPLETED
            )
            good = [one for one in done if one.exception() is None]
            if good or (done and not under_way):
                answer = (good or [*done])[0].result()
                times.append(clock() - began_s)
                return answer
            if clock() >= began_s + left_s:
                raise TimeoutError("no answer came")
            if not done:
                _counts["second_requests"] += 1
                under_way.add(asyncio.ensure_future(_counted(attempt)))
    finally:
        for one in under_way:
            one.cancel()


async def _counted(attempt: Callable[[], Awaitable[Any]]) -> Any:
    _counts["calls"] += 1
    return await attempt()


_all_slots: dict[tuple[asyncio.AbstractEventLoop, bool], asyncio.Semaphore] = {}


def _slots(large: bool) -> asyncio.Semaphore:
    """Of which a request holds one. A second request needs none: all slots may be stalled."""
    key = asyncio.get_running_loop(), large
    return _all_slots.setdefault(key, asyncio.Semaphore(_LARGE_AT_ONCE if large else _AT_ONCE))


def _run(jobs: Sequence[Job]) -> list[Any]:
    """What the jobs give. The first error of one ends the others, and so does an interrupt."""
    if not jobs:
        return []
    loop, results = _loop(), [None] * len(jobs)
    answers: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    tasks: list[asyncio.Task[None]] = []

    async def answer(number: int, job: Job) -> None:
        try:
            answers.put((number, await job(), None))
        except BaseException as error:  # the caller's to see
            answers.put((number, None, error))

    def begin() -> None:
        tasks.extend(loop.create_task(answer(*each)) for each in enumerate(jobs))

    def end() -> None:
        for task in tasks:
            task.cancel()

    try:
        loop.call_soon_threadsafe(begin)
        for _ in jobs:
            number, results[number], error = answers.get()
            if error is not None:
                raise error
    except BaseException:
        loop.call_soon_threadsafe(end)
        raise
    return results


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process, which runs. Where two are begun at once, one is kept."""
    pid = os.getpid()
    found = _loops.get(pid)
    if found is not None:
        return found
    begun = asyncio.new_event_loop()
    threading.Thread(target=begun.run_forever, name="gristmill-storage", daemon=True).start()
    kept = _loops.setdefault(pid, begun)
    if kept is not begun:
        begun.call_soon_threadsafe(begun.stop)
    return kept
