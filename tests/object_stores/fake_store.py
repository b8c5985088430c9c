"""A store on loopback that answers as GCS, S3 and Azure do, and keeps a log of what it was asked.

obstore asks GCS by the XML ways, which are those of S3 too, and TensorStore and array_record ask it
by the JSON ways. All are here, for the few things that readers ask.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.object_stores.answers import Answer, answer_to
from tests.object_stores.faults import Faults
from tests.object_stores.request_log import Request, RequestLog


@dataclasses.dataclass(frozen=True)
class Stored:
    """An object. Each that is put has a generation of its own, and the tag is of the content."""

    content: bytes
    generation: int

    @functools.cached_property
    def e_tag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


class FakeStore:
    """The server, in a thread of its own. `latency_s` passes before each answer.

    `denied` are keys that are answered with 403, and `private` asks for an authorization.
    `conditions` says whether it heeds If-Match.
    """

    def __init__(self, latency_s: float = 0.0, faults: Faults | None = None) -> None:
        self.latency_s = latency_s
        self.faults = faults or Faults()
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.denied: set[str] = set()
        self.private = False
        self.conditions = True
        self.log = RequestLog()
        self.on_read: Callable[[Request], Any] = lambda request: None  # in the server's thread
        self._generations = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake store")
        self._open: set[asyncio.Task[None]] = set()
        self._port = 0
        self._server: asyncio.Server | None = None

    def __enter__(self) -> "FakeStore":
        self._thread.start()
        self.come_back()
        return self

    def __exit__(self, *error: object) -> None:
        self.go()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def put(self, bucket: str, key: str, content: bytes) -> None:
        stored = Stored(content, next(self._generations))
        self.buckets.setdefault(bucket, {})[key] = stored

    def put_all(self, bucket: str, contents: Mapping[str, bytes]) -> None:
        for key, content in contents.items():
            self.put(bucket, key, content)

    def delete(self, bucket: str, key: str) -> None:
        del self.buckets[bucket][key]

    def go(self) -> None:
        """Answer nothing any more: nobody listens, and connections are broken off."""
        self._call(self._stop())

    def come_back(self) -> None:
        """Listen again, where it was before."""
        self._call(self._listen())

    @contextlib.contextmanager
    def logged(self) -> Iterator[RequestLog]:
        """The requests that come while the block lasts, once it has ended."""
        log, begin = RequestLog(), len(self.log)
        yield log
        log.extend(self.log[begin:])

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, backlog=1024, limit=2**20
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone, or this store has
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: Any) -> bool:
        """Whether the connection stays after this request."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        began_s = time.monotonic()
        method, target, _ = first.split(" ")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        answer = answer_to(self, method, target, headers)
        request = answer.request(began_s)
        self.log.append(request)
        try:
            return await self._send(answer, request, method, writer)
        finally:
            request.ended_s = request.ended_s or time.monotonic()

    async def _send(self, answer: Answer, request: Request, method: str, writer: Any) -> bool:
        self.on_read(request)
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        if request.kind == "read" and answer.status < 300:
            request.fault = self.faults.next(len(answer.content))
        if request.fault == "stalled":
            await asyncio.Event().wait()
        if request.fault == "refused":
            answer = dataclasses.replace(answer, status=503, content=b"slow down", headers={})
        content = answer.content
        if request.fault == "wrong length":
            content = content[:-1]
        head = answer.head(len(content))
        if request.fault == "cut":
            content = content[: len(content) // 2]
        if method == "HEAD":
            content = b""
        request.status = answer.status
        request.sent = len(content) if answer.status < 300 and request.kind == "read" else 0
        request.ended_s = time.monotonic()  # before the client can have it
        writer.write(head + content)
        await writer.drain()
        return request.fault != "cut"
