"""Objects in S3, and the policy of all S3 clients."""

from __future__ import annotations

import difflib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import chain
from queue import Full, Queue
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from sm_profiler.errors import SourceError
from sm_profiler.printable import one_line, printable
from sm_profiler.storage.base import (
    AccessDeniedError,
    FileInfo,
    MissingFileError,
    UnavailableError,
    UnreadableFileError,
    jittered_pause,
)

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        FlexibleChecksumError,
        HTTPClientError,
        IncompleteReadError,
        NoCredentialsError,
        SSOError,
        TokenRetrievalError,
    )
    from botocore.exceptions import ConnectionError as BotoConnectionError
    from botocore.session import Session as BotocoreSession
except ImportError as missing:  # pragma: no cover - this module is only imported for an s3:// URI
    raise SourceError("s3:// URIs need boto3: pip install 'sm-profiler[aws]'") from missing

API_ATTEMPTS = 3  # of a request that is throttled or gets no answer

CONNECT_SECONDS, READ_SECONDS = 5, 30
MAX_CONNECTIONS = 50
# Hosts of AWS's partitions; they have a host name for every bucket, which other endpoints seldom do.
AWS_HOSTS = (
    "amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "c2s.ic.gov", "sc2s.sgov.gov", "cloud.adc-e.uk",
    "csp.hci.ic.gov", "api.aws", "api.amazonwebservices.com.cn", "api.amazonwebservices.eu", "api.aws.ic.gov",
    "api.aws.scloud", "api.cloud-aws.adc-e.uk", "api.aws.hci.ic.gov",
)  # fmt: skip
TRANSIENT = frozenset({
    "429", "500", "502", "503", "504", "InternalError", "ServiceUnavailable", "SlowDown", "Throttling",
    "ThrottlingException", "RequestTimeout", "RequestTimeTooSkewed", "RequestLimitExceeded", "BandwidthLimitExceeded",
    "TooManyRequests",
})  # fmt: skip

MISSING = frozenset({"NoSuchKey", "NotFound", "404"})
DENIED = frozenset({"AccessDenied", "403", "AllAccessDisabled", "InvalidObjectState"})  # the last: an archived object
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
REFUSED = frozenset({"InvalidClientTokenId", "UnrecognizedClientException"})
EXPLANATIONS = {
    "NoSuchBucket": "the bucket does not exist: check its name, or create it",
    "AccessDenied": "access denied: these credentials may not {verb} it",
    "403": "access denied: these credentials may not {verb} it",
    "InvalidObjectState": "access denied: the object is archived",
    "AllAccessDisabled": "access denied: the bucket is disabled",
    "PermanentRedirect": "the bucket is in another region",
    "301": "the bucket is in another region",
    "AuthorizationHeaderMalformed": "the bucket is in another region",
    "IllegalLocationConstraintException": "the bucket is in another region",
    "InvalidToken": "the AWS session token is not valid",
    "InvalidAccessKeyId": "the AWS access key does not exist",
    "SignatureDoesNotMatch": "the AWS secret key is wrong",
    "RequestTimeTooSkewed": "this machine's clock differs too much from AWS's",
    "InvalidBucketName": "the bucket name is not valid",
}

# AWS's own reason of a denial: what is missing may be the permission to use a key
_NOT_AUTHORIZED = re.compile(r'not authorized to perform: ([\w:*-]{1,80})(?: on resource: "?([^\s"]{1,300}))?')

Result = TypeVar("Result")

ATTEMPTS = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.375, 20.0
PARALLEL = 16
PAGES_AHEAD, WAITING = 2, 1000  # of each folder in a listing; files and folders before they are yielded
CLOSING_S = 0.5
MAX_OBJECT_BYTES = 4 << 30  # that is read at once
MULTIPART_BYTES = 32 << 20  # larger files are uploaded in parts

BROKEN_CONNECTION = (
    HTTPClientError,
    BotoConnectionError,
    IncompleteReadError,
    FlexibleChecksumError,
    ConnectionError,
    TimeoutError,
)
REQUEST_ERRORS = (ClientError, BotoCoreError, ValueError, *BROKEN_CONNECTION)


def create_api_client(service: str, *, region: str | None = None, session: Any = None) -> Any:
    """Create a boto3 client of a service other than S3.

    Raises:
        SourceError: the client cannot be created, for example without a region.
    """
    return create_client(service, session=session, attempts=API_ATTEMPTS, region_name=region)


def create_client(
    service: str = "s3", *, session: Any = None, attempts: int = 1, proxies: dict[str, str] | None = None, **named: Any
) -> Any:
    """Create a boto3 client with the common policy: it fails quickly, and by default leaves retries to its caller.

    Args:
        service: the service's name; addressing by path applies to S3 alone.
        session: the boto3 session; default: that of the environment.
        attempts: how often the client sends a request before it fails, for callers that do not retry. With more than
            one, it also sends requests more slowly for a while after one was throttled.
        proxies: proxies to use instead of the environment's.
        named: passed to the session's `client` method, for example `region_name` and `endpoint_url`.

    Raises:
        SourceError: the client cannot be created, for example because the region or profile is not valid.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "adaptive" if attempts > 1 else "standard", "total_max_attempts": attempts},
        max_pool_connections=MAX_CONNECTIONS,
        proxies=proxies,
    )
    try:
        if session is None:
            session = environment_session() if _without_empty_variables() else boto3  # a session takes long to create
            named["region_name"] = named.get("region_name") or environment_region()
        create: Any = session.client
        client = create(service, config=config, **named)
        if service == "s3" and not is_aws(client.meta.endpoint_url):
            client = create(service, config=config.merge(Config(s3={"addressing_style": "path"})), **named)
    except (BotoCoreError, ValueError) as error:
        raise SourceError(f"no {service} client can be created: {one_line(error)}") from error
    return client


def environment_region() -> str | None:
    """Return AWS_REGION, which boto3 ignores; None if it is not set."""
    return os.environ.get("AWS_REGION") or None


def environment_session(region: str | None = None) -> Any:
    """Return a new boto3 session of the environment, in which variables that are empty count as not set.

    Raises:
        BotoCoreError: the profile of the environment does not exist.
    """
    variables = _without_empty_variables()
    core = BotocoreSession(session_vars=variables) if variables else None
    return boto3.Session(region_name=region or environment_region(), botocore_session=core)


def _without_empty_variables() -> dict[str, Any]:
    """Return botocore's settings with an empty variable, which it takes for a region or a profile without a name."""
    found = {}
    for name, (key, known, *rest) in BotocoreSession.SESSION_VARIABLES.items():
        names = [known] if isinstance(known, str) else known or []
        if "" in map(os.environ.get, names):
            found[name] = (key, [each for each in names if os.environ.get(each)] or None, *rest)
    return found


def is_aws(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return any(host == known or host.endswith("." + known) for known in AWS_HOSTS)


def error_codes(error: BaseException | None) -> tuple[str, str]:
    """Return S3's error code and the HTTP status of an error, each "" if there is none."""
    if not isinstance(error, ClientError):
        return "", ""
    code = error.response.get("Error", {}).get("Code", "")
    return str(code), str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def is_answer(error: BaseException) -> bool:
    """Return whether S3 answered, and may accept the same request later: it is throttling or failing, not refusing."""
    return not TRANSIENT.isdisjoint(error_codes(error))


def credentials_problem(error: BaseException) -> str | None:
    """Return what is wrong with the AWS credentials and what to do; None if an error has another reason."""
    if isinstance(error, NoCredentialsError):
        return "no AWS credentials were found: sign in (aws sso login, aws configure)"
    code, _ = error_codes(error)
    if code in EXPIRED or isinstance(error, (SSOError, TokenRetrievalError)):
        return "the AWS credentials have expired: sign in again (aws sso login) or get new ones"
    return "AWS does not accept these credentials: get new ones (aws configure)" if code in REFUSED else None


def reason_of(error: BaseException, region: str | None = None) -> str:
    """Return why a request to AWS failed, on one line: the service's own message, or what is wrong with credentials or region."""
    response = getattr(error, "response", None)
    message = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    text = " ".join(str(message).split()) if message else one_line(error)
    hint = unknown_region(region) if region else ""
    return credentials_problem(error) or (f"{hint} ({text})" if hint else text)


def unknown_region(name: str) -> str:
    """Return that there is no such region, and which are near; "" for the regions that botocore lists.

    A new region may be missing in an older botocore, so this explains failures, and refuses nothing by itself.
    """
    session = boto3.Session()
    known = {
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("sagemaker", partition)
    }
    if name in known:
        return ""
    near = sorted(difflib.get_close_matches(name.lower(), sorted(known), n=2))
    return f"unknown region {name}" + (f": did you mean {' or '.join(near)}?" if near else "")


def explain(error: BaseException, uri: str, verb: str = "read") -> SourceError:
    """Return a one-line error for a failed request.

    Args:
        error: what boto3 raised.
        uri: the object or prefix.
        verb: `read` or `write`.
    """
    if problem := credentials_problem(error):
        return SourceError(f"{uri}: {problem}")
    code, status = error_codes(error)
    if verb == "write" and code in {"NoSuchBucket", *MISSING}:  # what is to be written is never what is missing
        return SourceError(f"{'/'.join(uri.split('/')[:3])}: {EXPLANATIONS['NoSuchBucket']}")
    if code in MISSING:
        return MissingFileError(f"{uri} does not exist")
    kind = (
        UnavailableError
        if is_answer(error)
        else AccessDeniedError
        if code in DENIED or code.startswith("KMS.")
        else SourceError
    )
    explanation = EXPLANATIONS.get(code) or EXPLANATIONS.get(status)
    if explanation is None or not isinstance(error, ClientError):
        return kind(f"{uri}: {one_line(error)}")
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or error.response.get("Error", {}).get("Region")
    if "region" in explanation and region:
        explanation += f", {region}: set AWS_REGION={region}"
    explanation = explanation.format(verb=verb)
    if denied := _NOT_AUTHORIZED.search(str(error.response.get("Error", {}).get("Message", ""))):
        resource = f" on {denied[2].rstrip('.')}" if denied[2] else ""
        explanation += printable(f" (not authorized: {denied[1]}{resource})")
    return kind(f"{uri}: {explanation}")


class S3Storage:
    """The objects below a prefix of a bucket.

    Thread-safe. Throttling, 5xx answers, broken connections and truncated bodies are retried with growing, jittered
    pauses.

    Args:
        prefix: the prefix, with or without a slash at its end.
        client: a boto3 S3 client; default: one created from the environment.
        requester_pays: agree to pay for requests to a requester-pays bucket.
        kms_key_id: encrypt what is written with this key; default: the bucket's settings apply.
        attempts: how often a request is sent before it fails.
        sleep: waits for some seconds.
    """

    parallel_reads = PARALLEL

    def __init__(  # independent choices
        self,
        bucket: str,
        prefix: str = "",
        *,
        client: Any = None,
        requester_pays: bool = False,
        kms_key_id: str | None = None,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._payer = {"RequestPayer": "requester"} if requester_pays else {}
        self._encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id} if kms_key_id else {}
        self._attempts = attempts
        self._sleep = sleep
        self._client = client if client is not None else create_client()

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield all objects whose key begins with `prefix` and follows `start_after`, in the order of their keys.

        After the first thousand, folders of the next two levels (the hours of a profile) are listed in parallel, a few
        pages ahead of the caller.
        """
        pages = self._pages(self.prefix + prefix, self.prefix + start_after if start_after else None)
        with closing(pages):
            for page in pages:
                yield from self._files(page)
                after = page["Contents"][-1]["Key"] if page.get("Contents") else ""
                if "/" in after[len(self.prefix + prefix) :]:
                    break
            else:
                return
            if not page.get("IsTruncated"):
                return
        units = chain.from_iterable(self._expanded(unit, after) for unit in self._units(self.prefix + prefix, after))
        yield from self._in_order(units, after)

    def _pages(self, prefix: str, after: str | None, **more: str) -> Generator[dict[str, Any], None, None]:
        """Yield the answers of a listing; keys begin with the bucket's root."""
        request = {"Bucket": self.bucket, "Prefix": prefix, **self._payer, **more}
        if after:
            request["StartAfter"] = after
        while True:
            page = self._call(lambda: self._client.list_objects_v2(**request), prefix.removeprefix(self.prefix))
            yield page
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return
            if token == request.get("ContinuationToken"):
                raise SourceError(f"{self.uri}: the endpoint answers with the same page of the listing again")
            request["ContinuationToken"] = token

    def folders(self) -> Iterator[str]:
        """Yield the parts of keys up to the first slash below the root, each with that slash."""
        for page in self._pages(self.prefix, None, Delimiter="/"):
            for item in page.get("CommonPrefixes", ()):
                if item["Prefix"].startswith(self.prefix):
                    yield item["Prefix"][len(self.prefix) :]

    def _files(self, page: Mapping[str, Any]) -> Iterator[FileInfo]:
        for item in page.get("Contents", ()):
            key = item["Key"]
            # An endpoint may answer with keys outside the prefix; keys that end in a slash are folders.
            if key.startswith(self.prefix) and not key.endswith("/"):
                changed = item["LastModified"].timestamp() if "LastModified" in item else 0.0
                yield FileInfo(key[len(self.prefix) :], item.get("Size", 0), changed, item.get("ETag", ""))

    def _units(self, prefix: str, after: str) -> Iterator[FileInfo | str]:
        """Yield the files of a folder and its folders that hold keys after one, in the order of their keys."""
        for page in self._pages(prefix, None, Delimiter="/"):
            files = [file for file in self._files(page) if self.prefix + file.key > after]
            folders = [each["Prefix"] for each in page.get("CommonPrefixes", ())]
            folders = [each for each in folders if each > after or after.startswith(each)]
            yield from sorted(
                [*files, *folders], key=lambda unit: unit if isinstance(unit, str) else self.prefix + unit.key
            )

    def _expanded(self, unit: FileInfo | str, after: str) -> Iterator[FileInfo | str]:
        """Yield a file, or what a folder holds."""
        if isinstance(unit, FileInfo):
            yield unit
        else:
            yield from self._units(unit, after)

    def _in_order(self, units: Iterator[FileInfo | str], after: str) -> Iterator[FileInfo]:
        """Yield the files of folders that are listed in parallel."""
        closed = threading.Event()
        waiting: deque[FileInfo | _Listing] = deque()
        listings = 0
        with ThreadPoolExecutor(PARALLEL, "sm-profiler-list") as pool:
            try:
                while True:
                    while listings < PARALLEL and len(waiting) < WAITING and (unit := next(units, None)) is not None:
                        if isinstance(unit, FileInfo):
                            waiting.append(unit)
                            continue
                        pages = self._pages(unit, after if after.startswith(unit) else None)
                        waiting.append(_Listing(pool, pages, closed))
                        listings += 1
                    if not waiting:
                        return
                    found = waiting.popleft()
                    if isinstance(found, FileInfo):
                        yield found
                        continue
                    for page in found.pages():
                        yield from (file for file in self._files(page) if self.prefix + file.key > after)
                    listings -= 1
            finally:
                closed.set()

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of an object, or those from `start` up to but not including `end`."""
        request = {**self._address(key), **self._payer}
        most = MAX_OBJECT_BYTES if end is None else end - (start or 0)
        if start is not None or end is not None:
            if end is not None and end <= (start or 0):
                return b""
            request["Range"] = f"bytes={start or 0}-{'' if end is None else end - 1}"

        def get() -> bytes:
            answer = self._client.get_object(**request)
            # Not as a context manager: that would return the underlying stream, whose errors are not botocore's.
            length = answer.get("ContentLength")
            with closing(answer["Body"]) as body:
                if length is not None and length > most:
                    raise UnreadableFileError(f"{self.uri}/{key}: {length} bytes instead of at most {most}")
                data: bytes = body.read(most + 1)
                if len(data) > most:
                    raise UnreadableFileError(f"{self.uri}/{key}: more than {most} bytes")
                body.read(1)  # at its end, boto3 compares length and checksum
            if length is not None and len(data) != length:
                raise ConnectionError(f"only {len(data)} of {length} bytes arrived")
            return data

        return self._call(get, key)

    def write(self, key: str, data: bytes) -> None:
        request = {**self._address(key), "Body": data, **self._encryption, **self._payer}
        self._call(lambda: self._client.put_object(**request), key, "write")

    def upload(self, key: str, file: BinaryIO, size: int) -> None:
        """Store an open file of `size` bytes, in parts if it is large.

        Raises:
            SourceError: the upload failed.
        """
        address = self._address(key)

        def send() -> None:
            file.seek(0)
            if size > MULTIPART_BYTES:
                self._client.upload_fileobj(file, *address.values(), ExtraArgs={**self._encryption, **self._payer})
            else:
                self._client.put_object(**address, Body=file, **self._encryption, **self._payer)

        self._call(send, key, "write")

    def exists(self, key: str) -> bool:
        request = {**self._address(key), **self._payer}
        try:
            self._call(lambda: self._client.head_object(**request), key)
        except MissingFileError:
            return False
        return True

    def _address(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.prefix + key}

    def _call(self, call: Callable[[], Result], key: str, verb: str = "read") -> Result:
        for attempt in range(1, self._attempts + 1):
            try:
                return call()
            except REQUEST_ERRORS as error:
                may_succeed = is_answer(error) or isinstance(error, BROKEN_CONNECTION)
                if attempt == self._attempts or not may_succeed:
                    raise explain(error, f"s3://{self.bucket}/{self.prefix}{key}", verb) from error
            self._sleep(jittered_pause(attempt, FIRST_PAUSE_S, LONGEST_PAUSE_S))
        raise AssertionError("the last attempt returns or raises")


class _Listing:
    """The pages of a folder, which a thread fetches a few ahead of the reader."""

    def __init__(self, pool: ThreadPoolExecutor, pages: Iterator[dict[str, Any]], closed: threading.Event) -> None:
        self._queue: Queue[dict[str, Any] | Exception | None] = Queue(PAGES_AHEAD)
        self._closed = closed
        pool.submit(self._fetch, pages)

    def _fetch(self, pages: Iterator[dict[str, Any]]) -> None:
        try:
            for page in pages:
                if not self._put(page):
                    return
        except Exception as error:  # the reader raises it
            self._put(error)
        else:
            self._put(None)

    def _put(self, page: dict[str, Any] | Exception | None) -> bool:
        """Hand over a page; return False if the reader has stopped."""
        while not self._closed.is_set():
            with suppress(Full):
                self._queue.put(page, timeout=CLOSING_S)
                return True
        return False

    def pages(self) -> Iterator[dict[str, Any]]:
        """Yield the pages.

        Raises:
            SourceError: one cannot be fetched.
        """
        while (page := self._queue.get()) is not None:
            if isinstance(page, Exception):
                raise page
            yield page
