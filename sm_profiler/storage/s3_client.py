"""S3 clients, and the policy that all of them share: timeouts, retries, addressing, and how errors are reported.

Clients never retry on their own. Readers retry a few times (`S3Storage`), the uploader until its deadline; both consult
`is_transient`.
"""

from __future__ import annotations

import difflib
from typing import Any
from urllib.parse import urlsplit

from sm_profiler.errors import SourceError
from sm_profiler.printable import one_line
from sm_profiler.storage.base import AccessDeniedError, MissingFileError, UnavailableError

ATTEMPTS = 3  # of a request that is throttled or gets no answer


def create_api_client(service: str, *, region: str | None = None, session: Any = None) -> Any:
    """Create a boto3 client of a service other than S3.

    Args:
        service: the service's name, such as `sagemaker`.
        region: AWS region; default: the session's.
        session: the boto3 session; default: boto3's own.

    Raises:
        SourceError: the client cannot be created, for example without a region.
    """
    return create_client(service, session=session, attempts=ATTEMPTS, region_name=region)


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
except ImportError as missing:  # pragma: no cover - this module is only imported for an s3:// URI
    raise SourceError("s3:// URIs need boto3: pip install 'sm-profiler[aws]'") from missing

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
BROKEN_CONNECTION = (
    HTTPClientError,
    BotoConnectionError,
    IncompleteReadError,
    FlexibleChecksumError,
    ConnectionError,
    TimeoutError,
)
REQUEST_ERRORS = (ClientError, BotoCoreError, ValueError, *BROKEN_CONNECTION)
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


def create_client(
    service: str = "s3", *, session: Any = None, attempts: int = 1, proxies: dict[str, str] | None = None, **named: Any
) -> Any:
    """Create a boto3 client with the common policy: it fails quickly, and by default leaves retries to its caller.

    Args:
        service: the service's name; addressing by path applies to S3 alone.
        session: the boto3 session; default: boto3's own.
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
    create: Any = (session or boto3).client
    try:
        client = create(service, config=config, **named)
        if service == "s3" and not is_aws(client.meta.endpoint_url):
            client = create(service, config=config.merge(Config(s3={"addressing_style": "path"})), **named)
    except (BotoCoreError, ValueError) as error:
        raise SourceError(f"no {service} client can be created: {one_line(error)}") from error
    return client


def is_aws(url: str) -> bool:
    """Return whether an endpoint is one of AWS's own."""
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


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed a moment later."""
    return is_answer(error) or isinstance(error, BROKEN_CONNECTION)


def credentials_problem(error: BaseException) -> str | None:
    """Return what is wrong with the AWS credentials and what to do; None if an error has another reason."""
    if isinstance(error, NoCredentialsError):
        return "no AWS credentials were found: sign in (aws sso login, aws configure)"
    code, _ = error_codes(error)
    if code in EXPIRED or isinstance(error, (SSOError, TokenRetrievalError)):
        return "the AWS credentials have expired: sign in again (aws sso login) or get new ones"
    return "AWS does not accept these credentials: get new ones (aws configure)" if code in REFUSED else None


def reason_of(error: BaseException, region: str | None = None) -> str:
    """Return why a request to AWS failed, on one line: the service's own message, or what is wrong with credentials or region.

    Args:
        error: what boto3 raised.
        region: where the request was sent to.
    """
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
    return kind(f"{uri}: {explanation.format(verb=verb)}")
