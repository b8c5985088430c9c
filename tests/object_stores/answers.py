"""What a store answers: the XML ways of GCS, S3 and Azure, and the JSON ways of GCS."""

import dataclasses
import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from tests.object_stores.request_log import Request

_AZURE_PAGE = 5000
_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"
_WORDS = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer, and what it is an answer to."""

    kind: str
    bucket: str
    key: str
    status: int
    content: bytes = b""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    begin: int = 0

    def request(self, began_s: float) -> Request:
        end = self.begin + len(self.content) if self.kind == "read" else 0
        return Request(self.kind, self.bucket, self.key, self.begin, end, began_s)

    def head(self, length: int) -> bytes:
        headers = {"Content-Length": str(length), "Last-Modified": _MODIFIED, **self.headers}
        lines = [f"HTTP/1.1 {self.status} Answer", *(f"{k}: {v}" for k, v in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answer_to(store: Any, method: str, target: str, headers: Mapping[str, str]) -> Answer:
    url = urllib.parse.urlsplit(target)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    json_way = re.match(r"(?:/download)?/storage/v1/b/([^/]+)(?:/o(?:/(.*))?)?$", url.path)
    if json_way:
        bucket, key = json_way[1], urllib.parse.unquote(json_way[2] or "")
    else:
        bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
    described = json_way is not None and query.get("alt") != "media"
    kind = "list" if not key else "size" if method == "HEAD" or described else "read"
    problem = _problem(store, bucket, key, headers)
    if problem:
        status, word = problem
        error = f"<Error><Code>{word}</Code></Error>".encode()
        return Answer(kind, bucket, key, status, error)
    if not key:
        listing = _json_listing if json_way else _xml_listing
        if query.get("comp") == "list":
            listing = _azure_listing
        kept = dict(sorted(store.buckets[bucket].items()))
        return Answer(kind, bucket, key, 200, listing(bucket, kept, query))
    stored = store.buckets[bucket][key]
    if described:
        return Answer(kind, bucket, key, 200, json.dumps(_json(bucket, key, stored)).encode())
    if not store.conditions:
        headers = {name: value for name, value in headers.items() if name != "if-match"}
    return _object(stored, Answer(kind, bucket, key, 200), headers, query)


def _problem(store: Any, bucket: str, key: str, headers: Any) -> tuple[int, str] | None:
    if store.private and "authorization" not in headers:
        return 401, "Unauthorized"
    if bucket not in store.buckets:
        return 404, "NoSuchBucket"
    if key in store.denied or bucket in store.denied:
        return 403, "AccessDenied"
    if key and key not in store.buckets[bucket]:
        return 404, "NoSuchKey"
    return None


def _object(stored: Any, answer: Answer, headers: Mapping[str, str], query: Any) -> Answer:
    generation = str(stored.generation)
    if (
        headers.get("if-match", stored.e_tag) != stored.e_tag
        or query.get("ifGenerationMatch", generation) != generation
    ):
        return dataclasses.replace(answer, status=412)
    size = len(stored.content)
    named = {
        "ETag": stored.e_tag,
        "x-goog-generation": str(stored.generation),
        "x-goog-stored-content-length": str(size),
        "Accept-Ranges": "bytes",
    }
    begin, end = _range(headers.get("range", ""), size)
    if begin >= size > 0 and "range" in headers:
        return dataclasses.replace(answer, status=416, headers={"Content-Range": f"bytes */{size}"})
    if "range" in headers and size:
        named["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        answer = dataclasses.replace(answer, status=206)
    return dataclasses.replace(
        answer, content=stored.content[begin:end], headers=named, begin=begin
    )


def _range(text: str, size: int) -> tuple[int, int]:
    """The bytes that a `Range` names."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not found:
        return 0, size
    if not found[1]:
        return max(0, size - int(found[2])), size
    return int(found[1]), min(size, int(found[2] or size - 1) + 1)


def _xml_listing(bucket: str, objects: Mapping[str, Any], query: Mapping[str, str]) -> bytes:
    prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
    most = int(query.get("max-keys", 1000))
    after = max(after, query.get("start-after", ""))
    names = [name for name in objects if name.startswith(prefix) and name > after]
    last = escape("".join(names[:most][-1:]))
    more = f"<NextContinuationToken>{last}</NextContinuationToken>"
    entries = "".join(
        f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{escape(objects[name].e_tag)}</ETag><Size>{len(objects[name].content)}</Size>"
        "</Contents>"
        for name in names[:most]
    )
    cut = len(names) > most
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
        f"<Name>{bucket}</Name><IsTruncated>{str(cut).lower()}</IsTruncated>"
        f"{more if cut else ''}{entries}</ListBucketResult>"
    ).encode()


def _azure_listing(bucket: str, objects: Mapping[str, Any], query: Mapping[str, str]) -> bytes:
    prefix, after = query.get("prefix", ""), query.get("marker", "")
    names = [name for name in objects if name.startswith(prefix) and name > after]
    entries = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{_MODIFIED}</Last-Modified>"
        f"<Content-Length>{len(objects[name].content)}</Content-Length>"
        f"<Content-Type>x</Content-Type><Etag>{escape(objects[name].e_tag)}</Etag>"
        "</Properties></Blob>"
        for name in names[:_AZURE_PAGE]
    )
    more = escape(names[_AZURE_PAGE - 1]) if len(names) > _AZURE_PAGE else ""
    return (
        f'<?xml version="1.0"?><EnumerationResults ContainerName="{bucket}"><Blobs>{entries}'
        f"</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>"
    ).encode()


def _json_listing(bucket: str, objects: Mapping[str, Any], query: Mapping[str, str]) -> bytes:
    names = [name for name in objects if name.startswith(query.get("prefix", ""))]
    return json.dumps({"items": [_json(bucket, name, objects[name]) for name in names]}).encode()


def _json(bucket: str, key: str, stored: Any) -> dict[str, str]:
    generation, size = str(stored.generation), str(len(stored.content))
    return {
        "kind": "storage#object", "bucket": bucket, "name": key, "size": size,
        "generation": generation, "metageneration": "1", "etag": stored.e_tag,
        "timeCreated": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z",
    }  # fmt: skip
