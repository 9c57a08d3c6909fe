"""A substitute for an S3 client that lists many keys: counts requests, and how many are made at once."""

import bisect
import datetime as dt
import threading
import time

PAGE = 1000
WHEN = dt.datetime(2023, 11, 15, tzinfo=dt.timezone.utc)


class ListingStub:
    """Answers `list_objects_v2` as S3 does."""

    def __init__(self, keys, seconds=0.0):
        self.keys, self.seconds = sorted(keys), seconds
        self.calls = self.running = self.most = 0
        self.lock = threading.Lock()

    def list_objects_v2(self, *, Bucket, Prefix, StartAfter="", ContinuationToken="", Delimiter=""):  # as boto3
        del Bucket
        with self.lock:
            self.calls, self.running = self.calls + 1, self.running + 1
            self.most = max(self.most, self.running)
        time.sleep(self.seconds)
        at = int(
            ContinuationToken or max(bisect.bisect_left(self.keys, Prefix), bisect.bisect_right(self.keys, StartAfter))
        )
        files, folders = [], []
        while self._is_in(at, Prefix) and len(files) + len(folders) < PAGE:
            key = self.keys[at]
            inner = key[len(Prefix) :].partition("/")
            if Delimiter and inner[1]:
                folders.append({"Prefix": f"{Prefix}{inner[0]}/"})
                at = bisect.bisect_left(self.keys, f"{Prefix}{inner[0]}0")  # the character after the slash
            else:
                files.append({"Key": key, "Size": 1000, "LastModified": WHEN, "ETag": f"{at:032x}"})
                at += 1
        more = self._is_in(at, Prefix)
        with self.lock:
            self.running -= 1
        found = {"Contents": files, "CommonPrefixes": folders, "IsTruncated": more}
        return {**found, "NextContinuationToken": str(at)} if more else found

    def _is_in(self, at, prefix):
        return at < len(self.keys) and self.keys[at].startswith(prefix)


def profile_keys(count, prefix="p/", hours=24):
    """Return the keys of a profile of about so many files: system metrics and traces, by minute and node."""
    nodes = max(count // (2 * 60 * hours), 1)
    for minute in range(60 * hours):
        at = 1_700_006_400 + 60 * minute
        hour = time.strftime("%Y%m%d%H", time.gmtime(at))
        for node in range(1, nodes + 1):
            yield f"{prefix}system/incremental/{hour}/{at}.algo-{node}.json"
            yield f"{prefix}framework/pevents/{hour}/{at}{node:06}_{node}-algo-{node}_pythontimeline.json"
