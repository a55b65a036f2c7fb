"""An S3 on this machine, moto's, that fails when it is told to."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Request:
    """One request as a fault sees it. number: of those that change something, from 1; 0 for the others."""

    method: str
    path: str
    number: int

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.number > 0


Fault = Callable[[Request], str | None]
"""What becomes of a request: None for nothing, `denied`, `broken`, `slow`, `dropped` before the answer or `cut` with
half of what was sent; `before`, `half` and `after` call `strike` and drop."""


AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=mine/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
ANSWERS = {"denied": ("403 Forbidden", "AccessDenied"), "broken": ("500 Internal Server Error", "InternalError")}


@dataclass
class S3Server:
    """A server on loopback with the bucket `lab`.

    strike: called when a fault says so. slow_s: how long a slow answer takes, unless `goes_on` is set before.
    """

    url: str
    fault: Fault | None = None
    strike: Callable[[], None] = lambda: None
    requests: list[Request] = field(default_factory=list)
    slow_s: float = 1.0
    goes_on: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.url}

    @property
    def num_writes(self) -> int:
        """How many requests changed something so far."""
        return sum(request.writes for request in self.requests)

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """For as long as the block lasts; numbers count from its beginning."""
        self.requests.clear()
        self.goes_on.clear()
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serve until the block is done."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    inner = DomainDispatcherApplication(create_backend_app)
    server = S3Server("")
    lock = threading.Lock()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with lock:
            changes = method in ("PUT", "POST", "DELETE")
            number = server.num_writes + 1 if changes else 0
            request = Request(method, f"{path}?{environ['QUERY_STRING']}", number)
            server.requests.append(request)
        happens = server.fault(request) if server.fault is not None else None
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if happens in ("half", "cut"):
            environ["wsgi.input"].read(length // 2)
        if happens == "after":
            list(inner(environ, lambda *_: lambda _: None))
        if happens in ("before", "half", "after"):
            server.strike()
        if happens in ("before", "half", "after", "cut", "dropped"):
            environ["werkzeug.socket"].shutdown(2)
            start_response("200 OK", [])
            return []
        if happens == "slow":
            server.goes_on.wait(server.slow_s)
        elif happens is not None:
            environ["wsgi.input"].read(length)
            status, code = ANSWERS[happens]
            start_response(status, [("Content-Type", "application/xml")])
            return [f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()]
        return inner(environ, start_response)

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    http = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    request = urllib.request.Request(f"{server.url}/lab", method="PUT", headers={"Authorization": AUTHORIZATION})
    urllib.request.urlopen(request).close()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
