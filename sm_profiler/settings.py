"""Every setting of sm-profiler: environment variables, keys of the configuration, keys of the settings file.

Code that needs a setting imports it from here and calls `read`, or `read_or_default` where a wrong value must not stop
anything. `sm-profiler settings` lists them with their present values; docs/settings.md is written from them.

A training process imports this module, so it needs nothing but the standard library, and its classes are plain ones:
typing.NamedTuple takes milliseconds to compile its annotations.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MAX_POLL_S = 3600.0
_NONE = frozenset({"off", "no", "none", "false"})
_OFF = _NONE | {"0"}
_ON = frozenset({"on", "yes", "true", "1"})
_MAX_DIGITS = 9
_MAX_SHOWN = 60  # characters of a wrong value
_OURS = "SM_PROFILER_"
_RESEMBLANCE = 0.7  # of names; other packages may have variables of their own that begin like ours
_SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kMGT]?)B?"
_LEAST_SIZE = 10 * 10**6  # bytes of one trace file: with less, the file that was closed last would be emptied
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class SettingKind:
    """The kind of values that a setting takes.

    Attributes:
        name: for lists of settings.
        expected: continues “expected …” in a message about a wrong value.
        parse: returns the value of a text; raises ValueError.
    """

    __slots__ = ("expected", "name", "parse")

    def __init__(self, name: str, expected: str, parse: Callable[[str], Any]) -> None:
        self.name, self.expected, self.parse = name, expected, parse


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in _ON or word in _OFF:
        return word in _ON
    raise ValueError(text)


def _up_to(most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = float(text)
        if not 0 < seconds <= most:
            raise ValueError(text)
        return seconds

    return parse


def _not_negative(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:
        raise ValueError(text)
    return seconds


def _count(text: str) -> int:
    digits = text.partition(":")[0]  # torchrun's form for an elastic number of nodes: 2:4
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise ValueError(text)
    return int(digits)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise ValueError(text)
    return port


def _size(text: str) -> int:
    """Return a number of bytes; 0 for none, which is not written 0: that may mean no limit, or that nothing is kept."""
    text = text.strip()
    if text.lower() in _NONE:
        return 0
    match = re.fullmatch(_SIZE, text, re.IGNORECASE)  # compiled when it is needed: each Python process imports this
    count = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if count < _LEAST_SIZE:
        raise ValueError(text)
    return count


def _folder(text: str) -> str | None:
    return None if text.strip().lower() in _OFF else text


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise ValueError(text)
    return host, _port(port)


TEXT = SettingKind("text", "a text", str)
PATH = SettingKind("path", "a path", str)
SWITCH = SettingKind("on or off", "on (1, true, yes) or off (0, false, no)", _switch)
SECONDS = SettingKind("number", "a number of seconds, 0 or more", _not_negative)
POLL = SettingKind("number", f"a number of seconds up to {MAX_POLL_S:g}", _up_to(MAX_POLL_S))
MICROSECONDS = SettingKind("number", "a number of microseconds", lambda text: int(float(text)))
COUNT = SettingKind("number", "a whole number", _count)
PORT = SettingKind("port", "a port from 0 to 65535", _port)
SIZE = SettingKind("size", "a size such as 20GB (bytes without a unit, 10 MB at least), or off", _size)
FOLDER = SettingKind("folder or off", "a folder, or off", _folder)
ADDRESS = SettingKind("HOST:PORT", "HOST:PORT", _address)
JSON = SettingKind("JSON, path or URI", "JSON, a path or a URI", str)
OBJECT = SettingKind("object", "an object", str)


class Setting:
    """One setting.

    Attributes:
        name: the variable or the key.
        kind: what its values are.
        description: what it does.
        read_in: module that reads it, without `sm_profiler.`.
        default: the value without it.
        shown: text for the default, if it is computed.
        unit: of a number.
        group: heading in lists.
        file_key: key in the settings file that is used when the variable is not set.
        is_secret: its value is never shown.
        is_ours: sm-profiler sets it for its own processes; users have no need to.
    """

    __slots__ = (
        "default", "description", "file_key", "group", "is_ours", "is_secret", "kind", "name", "read_in", "shown", "unit",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: SettingKind,
        description: str,
        read_in: str,
        default: Any = None,
        *,
        shown: str = "",
        unit: str = "",
        group: str = "",
        file_key: str = "",
        is_secret: bool = False,
        is_ours: bool = False,
    ) -> None:
        self.name, self.kind, self.description, self.read_in, self.default = name, kind, description, read_in, default
        self.shown, self.unit, self.group, self.file_key = shown, unit, group, file_key
        self.is_secret, self.is_ours = is_secret, is_ours

    def text(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the variable as it is; "" if it is not set."""
        return environment.get(self.name, "")

    def read(self, environment: Mapping[str, str] = os.environ) -> Any:
        """Return the value; the default if the variable is not set or empty.

        Raises:
            ConfigError: the variable has a value of another kind.
        """
        text = self.text(environment)
        if not text.strip():
            return self.default
        try:
            return self.kind.parse(text)
        except (ValueError, OverflowError):
            from sm_profiler.errors import ConfigError  # not every Python process needs it
            from sm_profiler.printable import printable

            raise ConfigError(
                f"{self.name}: expected {self.kind.expected}, found {printable(text[:_MAX_SHOWN])!r}"
            ) from None

    def problem(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return why the value cannot be used, and what is used instead; "" if it can."""
        try:
            self.read(environment)
        except ValueError as error:  # a ConfigError
            return f"{error}; using the default, {self.shown_default}"
        return ""

    def usable(self, environment: Mapping[str, str] = os.environ) -> Any:
        """Return the value, and the default instead of a wrong one, for code that leaves the report to other code."""
        return self.default if self.problem(environment) else self.read(environment)

    def read_or_default(self, environment: Mapping[str, str] = os.environ) -> Any:
        """Return the value, and the default instead of a wrong one, which is one warning in the log."""
        if problem := self.problem(environment):
            from sm_profiler.printable import logger_for

            logger_for("sm_profiler").warning("sm-profiler: %s", problem)
        return self.usable(environment)

    @property
    def shown_default(self) -> str:
        """The default as lists and messages show it."""
        if self.shown or self.default is None:
            return self.shown or "none"
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        number = f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        return f"{number} {self.unit}".rstrip() if self.unit else number


# Environment variables
RECORDING, READING = "Recording a training", "Reading profiles"
NAMING, RULE_JOBS, ENDPOINT = "Names in reports and fleets", "Rule jobs", "Local endpoint"
EXTENSIONS = "Extensions"

AUTO = Setting(
    "SM_PROFILER_AUTO", SWITCH, "profile each process that imports a supported framework", "monitor.task", False,
    group=RECORDING,
)  # fmt: skip
CONFIG = Setting(
    "SM_PROFILER_CONFIG", JSON, "the profiler configuration: JSON, a path or an `s3://` URI; a long one is in parts, "
    "with `_0`, `_1` and so on after the name", "config.api", group=RECORDING,
)  # fmt: skip
CONFIG_PATH = Setting(
    "SMPROFILER_CONFIG_PATH", PATH, "path of the configuration, as SageMaker sets it; SM_PROFILER_CONFIG comes first",
    "hook.settings", shown="/opt/ml/input/config/profilerconfig.json", group=RECORDING,
)  # fmt: skip
ROOT = Setting(
    "SM_PROFILER_ROOT", PATH, "folder that takes the place of `/opt/ml`", "container", shown="/opt/ml", group=RECORDING
)
SAMPLER = Setting(
    "SM_PROFILER_SAMPLER", SWITCH, "sample the Python stacks of the training thread", "hook.sampler", True,
    group=RECORDING,
)  # fmt: skip
HANG_SECONDS = Setting(
    "SM_PROFILER_HANG_SECONDS", SECONDS, "the shortest stop that is reported as a hang; 0 for none", "hook.hang", 60.0,
    unit="s", group=RECORDING,
)  # fmt: skip
LOCAL_MAX = Setting(
    "SM_PROFILER_LOCAL_MAX", SIZE, "limit of a profile's folder on the local disk, such as `50GB`; `off` for none",
    "monitor.agent", shown="20 GB, or a tenth of the disk if that is less, but at least 1 GB", unit="bytes",
    group=RECORDING,
)  # fmt: skip
DELETE_UPLOADED = Setting(
    "SM_PROFILER_DELETE_UPLOADED", SWITCH, "delete local files as soon as they are uploaded", "monitor.agent", False,
    group=RECORDING,
)  # fmt: skip
KMS_KEY = Setting(
    "SM_PROFILER_KMS_KEY", TEXT, "KMS key that encrypts what is written to S3", "storage", group=RECORDING,
    shown="the bucket's own",
)  # fmt: skip
NODE_RANK = Setting(
    "SM_PROFILER_NODE_RANK", COUNT, "number of this node, from 0, where the launcher does not set it", "container",
    shown="the launcher's", group=RECORDING,
)  # fmt: skip
NODES = Setting(
    "SM_PROFILER_NODES", COUNT, "number of nodes, where the launcher does not set it", "container",
    shown="the launcher's", group=RECORDING,
)  # fmt: skip
INSTANCE_TYPE = Setting(
    "SM_PROFILER_INSTANCE_TYPE", TEXT, "type of a machine outside of SageMaker, for prices: `p4d.24xlarge`",
    "container", group=RECORDING, shown="that of the EC2 instance",
)  # fmt: skip
METRICS_PORT = Setting(
    "SM_PROFILER_METRICS_PORT", PORT, "port at which Prometheus reads a job's newest values; 0 for any free port",
    "monitor.agent", shown="no port is opened", group=RECORDING,
)  # fmt: skip
METRICS_ADDRESS = Setting(
    "SM_PROFILER_METRICS_ADDRESS", TEXT, "address of that port", "monitor.agent", "127.0.0.1", group=RECORDING
)
METRICS_TARGETS = Setting(
    "SM_PROFILER_METRICS_TARGETS", PATH, "folder into which each job writes its address for Prometheus",
    "monitor.agent", group=RECORDING,
)  # fmt: skip
METRICS_OTLP = Setting(
    "SM_PROFILER_METRICS_OTLP", SWITCH, "push a job's newest values by OpenTelemetry, to the endpoint in its `OTEL_*` "
    "variables", "monitor.agent", False, group=RECORDING,
)  # fmt: skip
RUN_ID = Setting(
    "SM_PROFILER_RUN_ID", TEXT, "name of a run that has no other, the same in all of its processes",
    "settings", group=RECORDING, is_ours=True,
)  # fmt: skip
REPORTED = Setting(
    "SM_PROFILER_REPORTED", TEXT, "set once a process has reported what is wrong with the configuration, or that there "
    "is none; `off` once one has reported why the hook is off", "hook.entry", group=RECORDING, is_ours=True,
)  # fmt: skip
TRIAL = Setting(
    "SM_PROFILER_TRIAL", TEXT, "plan of `sm-profiler try-loader` for the script's process", "trial.__main__",
    group=RECORDING, is_ours=True,
)  # fmt: skip

USER = Setting("SM_PROFILER_USER", TEXT, "the job's user", "identity", shown="Slurm's, or the login", group=NAMING)
ACCOUNT = Setting("SM_PROFILER_ACCOUNT", TEXT, "the job's account or team", "identity", shown="Slurm's", group=NAMING)
JOB = Setting("SM_PROFILER_JOB", TEXT, "name of the job", "identity", shown="the launcher's", group=NAMING)
JOB_ID = Setting("SM_PROFILER_JOB_ID", TEXT, "the launcher's id of the job", "identity", shown="Slurm's", group=NAMING)
QUEUE = Setting("SM_PROFILER_QUEUE", TEXT, "queue or partition", "identity", shown="Slurm's, Kueue's", group=NAMING)
NAMESPACE = Setting("SM_PROFILER_NAMESPACE", TEXT, "namespace of the pod", "identity", shown="the pod's", group=NAMING)
POD = Setting("SM_PROFILER_POD", TEXT, "name of the pod", "identity", shown="the pod's", group=NAMING)
HOST = Setting("SM_PROFILER_HOST", TEXT, "name of the machine", "identity", shown="the host's name", group=NAMING)
LABELS_FILE = Setting(
    "SM_PROFILER_LABELS_FILE", PATH, "labels of the pod, in the format of Kubernetes' downward API", "identity",
    "/etc/podinfo/labels", group=NAMING,
)  # fmt: skip

CACHE = Setting(
    "SM_PROFILER_CACHE", FOLDER, "folder for copies of what was read; `off` for none", "source.cache",
    shown="sm-profiler in the user's cache folder", group=READING,
)  # fmt: skip
REQUESTER_PAYS = Setting(
    "SM_PROFILER_REQUESTER_PAYS", SWITCH, "agree to pay for requests to a requester-pays bucket", "storage", False,
    group=READING,
)  # fmt: skip
TRAILING = Setting(
    "TRAILING_DURATION_MICROSECONDS", MICROSECONDS, "how far behind the newest file a running job is read",
    "source.catalog", 300_000_000, unit="\N{MICRO SIGN}s", group=READING,
)  # fmt: skip
SERVE_TOKEN = Setting(
    "SM_PROFILER_SERVE_TOKEN", TEXT, "token of the live page, instead of a new one at each start", "cli.serve",
    is_secret=True, group=READING,
)  # fmt: skip

RULE_IMAGE = Setting(
    "SM_PROFILER_RULE_IMAGE", TEXT, "image of the rules; in the settings file, also an object region → image, `*` for "
    "all others", "debugger.debugger", shown="SageMaker's", group=RULE_JOBS, file_key="rule_image",
)  # fmt: skip
SOURCE = Setting(
    "SM_PROFILER_SOURCE", TEXT, "the profile that a rule job reads", "rules.rule_job", shown="the job's input",
    group=RULE_JOBS,
)  # fmt: skip
POLL_S = Setting(
    "SM_PROFILER_POLL_S", POLL, "time between two looks at a running job", "rules.runner", 10.0, unit="s",
    group=RULE_JOBS,
)  # fmt: skip
SCHEDULER = Setting(
    "SM_PROFILER_SCHEDULER", ADDRESS, "address of Dask's scheduler, for hosts that share a machine",
    "report.rule_runner", shown="port 8786 of the first host", group=RULE_JOBS,
)  # fmt: skip
ALLOW_STOP = Setting(
    "SM_PROFILER_ALLOW_STOP_TRAINING", SWITCH, "let a rule's action StopTraining stop the training job",
    "rules.rule", False, group=RULE_JOBS,
)  # fmt: skip

LOCAL_PYTHON = Setting(
    "SM_PROFILER_LOCAL_PYTHON", PATH, "interpreter whose packages the endpoint's jobs get", "local.command",
    shown="the endpoint's own", group=ENDPOINT,
)  # fmt: skip
LOCAL_TOOLKIT = Setting(
    "SM_PROFILER_LOCAL_TOOLKIT", PATH, "interpreter of an environment with AWS's training toolkit, which then starts "
    "the jobs", "local.command", group=ENDPOINT,
)  # fmt: skip
PLUGINS = Setting(
    "SM_PROFILER_PLUGINS", SWITCH, "use the extensions that other packages declare", "plugins", True, group=EXTENSIONS
)
SETTINGS = Setting(
    "SM_PROFILER_SETTINGS", PATH, "path of the settings file, a JSON object", "settings",
    shown="~/.config/sm-profiler/config.json", group="Settings file",
)  # fmt: skip

VARIABLES: tuple[Setting, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))

# Keys of the profiler configuration, in the API's case
TOP, PARAMETERS, WINDOW = "ProfilerConfig", "ProfilingParameters", "a collector's window"
_LOADING = "config.profile"
INTERVAL = Setting(
    "ProfilingIntervalInMilliseconds", COUNT, "time between two samples of the system metrics", _LOADING, 500,
    unit="ms", group=TOP,
)  # fmt: skip
LOCAL_PATH = Setting(
    "LocalPath", PATH, "folder that the files are written to", _LOADING, "/opt/ml/output/profiler", group=PARAMETERS
)
ROTATE_BYTES = Setting(
    "RotateMaxFileSizeInBytes", COUNT, "size at which a trace file is closed", _LOADING, 10_485_760, unit="bytes",
    group=PARAMETERS,
)  # fmt: skip
ROTATE_SECONDS = Setting(
    "RotateFileCloseIntervalInSeconds", SECONDS, "age at which a trace file is closed", _LOADING, 60.0, unit="s",
    group=PARAMETERS,
)  # fmt: skip
FAIL_THRESHOLD = Setting(
    "FileOpenFailThreshold", COUNT, "failures to open a file after which nothing more is written", _LOADING, 50,
    group=PARAMETERS,
)  # fmt: skip
SAMPLER_ENABLED = Setting(
    "SamplerEnabled", SWITCH, "sample the Python stacks of the training thread; an extension of the API's keys",
    "hook.sampler", True, group=PARAMETERS,
)  # fmt: skip
CONFIG_KEYS: tuple[Setting, ...] = (
    Setting(
        "S3OutputPath", TEXT, "S3 URI below which the profile is stored", _LOADING, group=TOP, shown="no upload"
    ),
    Setting("DisableProfiler", SWITCH, "switch everything off", _LOADING, False, group=TOP),
    INTERVAL,
    Setting("KmsKeyId", TEXT, "KMS key of the agent's uploads; an extension of the API's keys", _LOADING, group=TOP),
    Setting(
        "ProfilingParameters", OBJECT, "what the hook records; without it, only system metrics are recorded", _LOADING,
        group=TOP,
    ),
    LOCAL_PATH, ROTATE_BYTES, ROTATE_SECONDS, FAIL_THRESHOLD, SAMPLER_ENABLED,
    Setting("DetailedProfilingConfig", OBJECT, "window of operators and kernels", _LOADING, group=PARAMETERS),
    Setting("DataloaderProfilingConfig", OBJECT, "window of data loader events", _LOADING, group=PARAMETERS),
    Setting("PythonProfilingConfig", OBJECT, "window of a Python profiler", _LOADING, group=PARAMETERS),
    Setting("HorovodProfilingConfig", OBJECT, "window of Horovod's timeline, which is no longer recorded", _LOADING,
            group=PARAMETERS),
    Setting("SMDataParallelProfilingConfig", OBJECT, "window of SageMaker's data parallel library, which is no longer "
            "recorded", _LOADING, group=PARAMETERS),
    Setting("StartStep", COUNT, "first step", _LOADING, shown="the collector's", group=WINDOW),
    Setting("NumSteps", COUNT, "number of steps", _LOADING, shown="the collector's", unit="steps", group=WINDOW),
    Setting("StartTimeInSecSinceEpoch", SECONDS, "start, instead of a step", _LOADING, unit="s", group=WINDOW),
    Setting("Duration", SECONDS, "length, instead of steps", _LOADING, unit="s", group=WINDOW),
    Setting("DurationInSeconds", SECONDS, "the same as Duration", _LOADING, unit="s", group=WINDOW),
    Setting("MetricsRegex", TEXT, "names of data loader events that are kept", _LOADING, ".*", group=WINDOW),
    Setting("ProfilerName", TEXT, "`cprofile` or `pyinstrument`", _LOADING, "cprofile", group=WINDOW),
    Setting("cProfileTimer", TEXT, "`total_time`, `cpu_time`, `off_cpu_time`, or `default`, which rotates through the "
            "three", _LOADING, "total_time", group=WINDOW),
    Setting("DefaultProfiling", SWITCH, "the collector's default window", _LOADING, False, group=WINDOW),
)  # fmt: skip


def misspelt(environment: Mapping[str, str] = os.environ) -> str:
    """Return in one line which variables have almost the name of a setting; "" if there are none."""
    known = {one.name.removeprefix(_OURS) for one in VARIABLES if one.name.startswith(_OURS)}
    unknown = [name.removeprefix(_OURS) for name in environment if name.startswith(_OURS)]
    unknown = [name for name in unknown if name not in known and not re.fullmatch(r"CONFIG_[0-9]+", name)]
    if not unknown:
        return ""
    import difflib  # takes milliseconds

    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=_RESEMBLANCE) for name in sorted(unknown)}
    found = [f"{_OURS}{name} (did you mean {_OURS}{names[0]}?)" for name, names in near.items() if names]
    return f"ignored, since it is no setting: {', '.join(found)}" if found else ""


def run_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the id of a run that nothing names, the same in all processes that descend from its outermost Python process.

    If there is none, it is created for this process and its children.
    """
    found = RUN_ID.text(environment)
    if found:
        return found
    found = _launched(environment) or f"{time.strftime('local-%Y%m%d-%H%M%S')}-{os.getpid()}"
    if environment is os.environ:
        os.environ[RUN_ID.name] = found
    return found


def _launched(environment: Mapping[str, str]) -> str:
    """Return what the ranks of one launch have in common; "" for a process that is no rank."""
    for name in ("TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"):
        if environment.get(name, "none") not in {"none", ""}:
            return environment[name]
    if environment.get("MASTER_PORT") and environment.get("WORLD_SIZE", "1") != "1":
        return f"{environment.get('MASTER_ADDR', '')}-{environment['MASTER_PORT']}"
    return ""


def settings_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file: `SM_PROFILER_SETTINGS`, or else `~/.config/sm-profiler/config.json`."""
    from pathlib import Path  # keeps `import sm_profiler.debugger` quick

    named = SETTINGS.read(environment)
    if named:
        return Path(named)
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "sm-profiler" / "config.json"


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings file's object; an empty one if there is no file.

    Raises:
        ConfigError: it cannot be read, or is no JSON object.
    """
    import json  # keeps `import sm_profiler.debugger` quick

    from sm_profiler.errors import ConfigError

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return found
