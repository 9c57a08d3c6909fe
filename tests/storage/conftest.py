"""An S3 endpoint on this machine (moto) whose answers a test can replace or corrupt."""

import threading
from collections.abc import Callable, Iterable

import boto3
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>{}</Message>{}</Error>'


class Endpoint:
    """Moto with faults: each rule sees (method, path, query) and may replace the answer, or corrupt its body."""

    def __init__(self) -> None:
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.rules: list[Callable] = []
        self.requests: list[tuple[str, str, str]] = []
        self.headers: list[dict] = []
        self.lock = threading.Lock()
        self.server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=Quiet)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def __call__(self, environ: dict, start_response: Callable) -> Iterable[bytes]:
        request = (environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"])
        with self.lock:
            self.requests.append(request)
            self.headers.append({key: value for key, value in environ.items() if key.startswith("HTTP_")})
            rules = list(self.rules)
        for rule in rules:
            answer = rule(*request)
            if answer is None:
                continue
            if callable(answer):
                return [answer(b"".join(self.moto(environ, start_response)))]
            status, body = answer[:2]
            head = [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), *answer[2:]]
            start_response(status, head)
            return [body.encode()]
        return self.moto(environ, start_response)

    def fail(  # keyword arguments, one a condition
        self,
        status: str,
        code: str,
        *,
        times: int = 10**9,
        method: str = "GET",
        part: str = "",
        extra: str = "",
        headers: tuple = (),
    ):
        """Answer the next requests with an error."""
        left = [times]

        def rule(asked, path, query):
            if asked == method and part in path + "?" + query:
                with self.lock:
                    left[0] -= 1
                    if left[0] >= 0:
                        return (status, ERROR.format(code, "as the test wants it", extra), *headers)
            return None

        self.rules.append(rule)

    def client(self, **changes):
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"} | changes
        return boto3.client("s3", endpoint_url=self.url, **keys)


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"  # one connection per request, so that a body can end early

    def log(self, *_args) -> None:
        pass


@pytest.fixture(scope="session")
def moto_endpoint():
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()
    endpoint.thread.join(5)


@pytest.fixture
def endpoint(moto_endpoint, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": moto_endpoint.url, "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it would keep the credentials of other tests
    moto_endpoint.rules.clear()
    client = moto_endpoint.client()
    client.create_bucket(Bucket="jobs")
    yield moto_endpoint
    moto_endpoint.rules.clear()
    for item in client.get_paginator("list_objects_v2").paginate(Bucket="jobs").search("Contents[].Key") or ():
        if item:
            client.delete_object(Bucket="jobs", Key=item)
    moto_endpoint.requests.clear()
    moto_endpoint.headers.clear()
