"""A small S3 server that fails as real networks and services do: each request may meet a fault."""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>as the test requests</Message></Error>'


class FaultyS3:
    """Objects by (bucket, key).

    Attributes:
        objects: the stored bytes.
        fault: returns the name of a fault for a request (method, key), or None; see `Handler`.
        met: how often each fault was met.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.fault: Callable[[str, str], str | None] = lambda _method, _key: None
        self.met: dict[str, int] = {}
        self.lock = threading.Lock()
        self.released = threading.Event()  # ends hanging requests
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.s3 = self
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    def fail(self, *names: str, share: float = 1.0, seed: int = 0) -> None:
        """Let this share of requests meet one of the faults."""
        dice = random.Random(seed)  # not for cryptography

        def choose(_method: str, _key: str) -> str | None:
            with self.lock:
                return dice.choice(names) if dice.random() < share else None

        self.fault = choose

    def recover(self) -> None:
        """Let no further request fail, and release those that hang."""
        self.fault = lambda _method, _key: None
        self.released.set()

    def below(self, prefix: str) -> dict[str, bytes]:
        """Return the objects of all buckets below a prefix, without it."""
        with self.lock:
            return {key[len(prefix) :]: data for (_, key), data in self.objects.items() if key.startswith(prefix)}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    s3: FaultyS3

    def handle_error(self, *_args) -> None:
        pass  # clients that give up


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_args) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    do_PUT = do_HEAD = do_GET  # names of the standard library

    def answer(self) -> None:
        s3 = self.server.s3
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in (self.headers.get("Content-Encoding") or ""):
            body = unchunked(body)
        name = s3.fault(self.command, key)
        if name is not None:
            with s3.lock:
                s3.met[name] = s3.met.get(name, 0) + 1
            getattr(self, name)(bucket, key, body)
        else:
            self.serve(bucket, key, body)

    def serve(self, bucket: str, key: str, body: bytes) -> None:
        s3 = self.server.s3
        if self.command == "PUT":
            with s3.lock:
                s3.objects[bucket, key] = body
            self.reply(200, b"")
            return
        with s3.lock:
            found = s3.objects.get((bucket, key))
        if found is None:
            self.error(404, "NoSuchKey")
        else:
            self.reply(200, found)

    def reply(self, status: int, body: bytes, *, promised: int | None = None) -> None:
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(body) if promised is None else promised))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status: int, code: str) -> None:
        self.reply(status, ERROR.format(code).encode())

    # Faults ---------------------------------------------------------------------------------------------------------

    def throttled(self, *_request) -> None:
        self.error(503, "SlowDown")

    def internal_error(self, *_request) -> None:
        self.error(500, "InternalError")

    def bad_gateway(self, *_request) -> None:
        self.reply(502, b"<html>not S3 at all</html>")

    def expired_credentials(self, *_request) -> None:
        self.error(400, "ExpiredToken")

    def access_denied(self, *_request) -> None:
        self.error(403, "AccessDenied")

    def clock_skew(self, *_request) -> None:
        self.error(403, "RequestTimeTooSkewed")

    def missing_bucket(self, *_request) -> None:
        self.error(404, "NoSuchBucket")

    def reset_before(self, *_request) -> None:
        """Reset the connection without storing anything."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def reset_after(self, bucket: str, key: str, body: bytes) -> None:
        """Store the object, then reset the connection: the answer is lost."""
        if self.command == "PUT":
            with self.server.s3.lock:
                self.server.s3.objects[bucket, key] = body
        self.reset_before()

    def slow(self, bucket: str, key: str, body: bytes) -> None:
        time.sleep(0.3)
        self.serve(bucket, key, body)

    def truncated_answer(self, bucket: str, key: str, body: bytes) -> None:
        """Announce more bytes than are sent; uploads are stored all the same."""
        if self.command == "PUT":
            with self.server.s3.lock:
                self.server.s3.objects[bucket, key] = body
            self.reply(200, b"<", promised=500)
        else:
            found = self.server.s3.objects.get((bucket, key), b"")
            self.reply(200, found[: len(found) // 2], promised=len(found) + 1)
        self.close_connection = True

    def garbage(self, *_request) -> None:
        self.wfile.write(b"\x00\xff this is not HTTP\r\n\r\n")
        self.close_connection = True

    def hanging(self, *_request) -> None:
        """Accept the request and never answer it."""
        self.server.s3.released.wait(60)
        self.reset_before()


FAULTS = (
    "throttled", "internal_error", "bad_gateway", "expired_credentials", "access_denied", "clock_skew",
    "missing_bucket", "reset_before", "reset_after", "slow", "truncated_answer", "garbage", "hanging",
)  # fmt: skip


def unchunked(body: bytes) -> bytes:
    """Decode aws-chunked content."""
    parts = []
    while body:
        head, _, body = body.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        parts.append(body[:size])
        body = body[size + 2 :]
    return b"".join(parts)
