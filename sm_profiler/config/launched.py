"""A described training job's settings for profiling, and why it has no profile or no steps: one rule for all commands."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sm_profiler.config.api import config_from_environment
from sm_profiler.config.profile import Profile, load_profile
from sm_profiler.errors import ConfigError
from sm_profiler.formatting import duration
from sm_profiler.printable import CUT, cut, printable
from sm_profiler.settings import AUTO, CONFIG, ROTATE_SECONDS

RUNNING = ("InProgress", "Stopping")
CUT_SHORT = ("Stopped", "Failed")
MAX_SHOWN = 160  # characters of a job's environment in a message
LINE_BEGINNING, LINE_END = 60, 200  # characters of a line of its log, which ends with the reason of a failure
SHOWN_LINES = 2  # the first ones; the last one follows
_UNWRITABLE = "the profile cannot be written"
_DECISIVE = re.compile(  # lines that state why there is no profile, among those of all that was reported
    rf"{_UNWRITABLE}|no uploads|uploads are off|upload failed|not be uploaded|hook is off|nothing is recorded|monitor ended"
)
BEGINNING_S = 240.0  # of a job's data, in which its framework is loaded and its first step begins
_NOTHING_STORED = (
    "the agent has stored nothing",
    (
        "check that sm-profiler[aws,gpu] is installed in the container (in its image or requirements.txt), and that the "
        "job's role may write there"
    ),
)
_NO_FRAMEWORK = (
    "If both are so, its script imported none of PyTorch, Keras, TensorFlow and JAX, which starts the agent: in a script without "
    "these frameworks, mark each step: 'from sm_profiler.hook import get_hook', then 'with get_hook().step():'"
)
_CONFIG = "ProfilerConfig(framework_profile_params=FrameworkProfile())"


@attrs.frozen
class Launched:
    """A described job's settings for profiling.

    Attributes:
        status: such as `InProgress` or `Failed`; "" if unknown.
        started: its training has started, or that is unknown.
        hook: SM_PROFILER_AUTO is on among its variables.
        switch: that variable as it is; None if the job's environment lacks it, and only the image may have it.
        agent: the configuration in its environment; None if it has none, or only a path of one.
        text: the configuration in its environment, or a path of one, as it is; None if it has none.
        service: the configuration in its request; None if it has none.
        problem: why the configuration in its environment cannot be read, or "".
        failure: the service's reason of its failure, or "".
        isolated: its container has no network.
    """

    status: str
    started: bool
    hook: bool
    agent: Profile | None
    text: str | None
    service: Profile | None
    problem: str = ""
    failure: str = ""
    switch: str | None = None
    isolated: bool = False

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Launched:
        environment = job.get("Environment")
        variables = (
            {str(key): str(value) for key, value in environment.items()} if isinstance(environment, Mapping) else {}
        )
        text = config_from_environment(variables)
        agent, problem = None, ""
        if text is not None and text.lstrip().startswith("{"):
            try:
                agent = load_profile(text)
            except ConfigError as error:
                problem = str(error)
        config = job.get("ProfilerConfig")
        status = str(job.get("TrainingJobStatus") or "")
        return cls(
            status=status,
            started=not status or status == "Completed" or "TrainingStartTime" in job,
            hook=AUTO.usable(variables),
            agent=agent,
            text=text,
            service=load_profile(dict(config)) if isinstance(config, Mapping) and config else None,
            problem=problem,
            failure=str(job.get("FailureReason") or ""),
            switch=variables.get(AUTO.name),
            isolated=job.get("EnableNetworkIsolation") is True,
        )

    @property
    def why_off(self) -> str:
        """Reason that the hook is off by the job's environment, "" if it is on."""
        if self.hook:
            return ""
        return (
            f"{AUTO.name} is not on in the job's environment{f', but {_short(self.switch)!r}' if self.switch else ''}"
        )

    @property
    def running(self) -> bool:
        return self.status in RUNNING

    @property
    def by_agent(self) -> bool:
        """True if the agent, not the managed service, was to upload the profile."""
        return self.text is not None and (self.service is None or self.service.disabled)

    @property
    def may_store_profile(self) -> bool:
        """True if its configuration, as far as it is known, asks for a profile on S3 that is yet to come."""
        if not self.running:
            return False
        if not self.by_agent:
            return self.service is not None and not self.service.disabled
        if self.agent is None:  # the environment has the path of a configuration
            return self.hook and not self.problem
        return self.hook and not self.agent.disabled and self.s3_output_path is not None

    @property
    def _config(self) -> Profile | None:
        return self.agent if self.by_agent else self.service

    @property
    def rotate_close_s(self) -> float:
        """Seconds after which the hook closes a trace file, and it can be stored."""
        return self._config.rotate_close_seconds if self._config is not None else ROTATE_SECONDS.default

    @property
    def s3_output_path(self) -> str | None:
        path = self._config.s3_output_path if self._config is not None else None
        return path if path is not None and path.startswith("s3://") else None

    def why_no_profile(self, log: Sequence[str] = ()) -> tuple[str, str]:
        """Return why nothing is stored, and what to do.

        Args:
            log: lines of sm-profiler in the job's log.
        """
        if not self.started and (not self.running or self.may_store_profile):
            reason = f": {_short(self.failure)}" if self.failure else ""
            return f"its training has not started ({self.status}{reason})", ""
        if self.by_agent:
            why, advice = self._agent_problem()
        elif self.service is None:
            why = "the profiler was not switched on: neither its request nor its environment has a configuration"
            advice = "start the job with attach(…), or with profiler_config="
        elif self.service.disabled:
            why, advice = "the profiler was off: DisableProfiler is true", "start the job with a ProfilerConfig"
        else:
            why = "the managed service has stored nothing"
            advice = (
                "check that the job's role may write there; accounts that are new since 2026-07-30 have no managed "
                "profiling: attach(…, backend='agent') needs none"
            )
        if self.running and not why.startswith(("the profiler was", "uploads", "the hook")):
            return "nothing is stored yet", "the first files take about a minute; --follow waits for them"
        if self._config is not None and any(_UNWRITABLE in line for line in log):
            advice = (
                f"name another folder as LocalPath, or none: {_short(self._config.local_path)} cannot be written to"
            )
        if log:
            decisive = [line for line in log if _DECISIVE.search(line)] or log
            shown = [*decisive[:SHOWN_LINES], *decisive[SHOWN_LINES:][-1:]]
            return f"{why}; its log has: {' | '.join(map(_line, shown))}", advice
        if (why, advice) == _NOTHING_STORED and self.status == "Completed":  # its log has no line of the agent
            return why, f"{advice}. {_NO_FRAMEWORK}"
        return why, advice

    def _agent_problem(self) -> tuple[str, str]:
        path = self.agent.s3_output_path if self.agent is not None else None
        if not self.hook:
            return f"the hook was off: {self.why_off}", f"set {AUTO.name}=1"
        if self.problem:
            return f"the hook was off: {_short(self.problem)}", "launch with agent_environment(…) or attach(…)"
        if self.agent is not None and self.agent.disabled:
            return "the profiler was off: DisableProfiler is true", "start the job with a ProfilerConfig"
        if self.agent is not None and path is None:
            return (
                f"uploads were off: the configuration in {CONFIG.name} has no S3OutputPath",
                "pass s3_output_path= to agent_environment(…)",
            )
        if path is not None and not path.startswith("s3://"):
            return (
                f"uploads were off: {_short(path)!r} in {CONFIG.name} is not an S3 URI",
                "set s3_output_path to s3://bucket/prefix",
            )
        if self.isolated:
            return self.lost_in_isolation
        return _NOTHING_STORED

    @property
    def lost_in_isolation(self) -> tuple[str, str]:
        """Reason that nothing is stored of a job without a network whose files were in no folder that the service stores."""
        where = f" in {_short(self.agent.local_path)}" if self.agent is not None else ""
        return (
            f"its container had no network, and what was recorded{where} is lost with it",
            "launch with attach(…), or with agent_environment(…, network_isolation=True)",
        )

    def why_no_steps(self, recorded_s: float = math.inf, *, exited: bool = False) -> tuple[str, str]:
        """Return why a job with system metrics has no steps, and what to do, each a sentence.

        Args:
            recorded_s: how long the job has been recorded so far.
            exited: its script failed by itself, and has closed its files.
        """
        config = self._config
        if not self.hook:
            return (
                f"The hook was off: {self.why_off}.",
                f"Set {AUTO.name}=1 there (attach does), with {_CONFIG}.",
            )
        if config is not None and config.off:
            return (
                f"{AUTO.name}=1 is set, but the configuration asks for no framework metrics ({config.off}).",
                "Update the job: estimator.update_profiler(framework_profile_params=FrameworkProfile())."
                if self.running and not self.by_agent
                else f"Start the job with {_CONFIG}.",
            )
        if self.running and recorded_s < BEGINNING_S + self.rotate_close_s:
            return "No trace file is stored yet.", next_file(self.rotate_close_s)
        if exited:
            return (
                "The script failed before its first step.",
                f"Correct the error that ended it, which the job's log has. If it had made steps: {self._no_known_step}",
            )
        if self.status in CUT_SHORT:
            return (
                (
                    f"{AUTO.name}=1 is set and framework metrics are configured, but the job ended early, before any step "
                    f"was stored. {lost_in_open_file(self.rotate_close_s)}."
                ),
                (
                    f"Let the job run longer: a trace file is closed and stored after {duration(self.rotate_close_s)} "
                    f"(RotateFileCloseIntervalInSeconds). If it ran for longer: {self._no_known_step}"
                ),
            )
        return (
            f"{AUTO.name}=1 is set and framework metrics are configured, but no step is stored.",
            f"{self._no_known_step[0].upper()}{self._no_known_step[1:]}",
        )

    @property
    def _no_known_step(self) -> str:
        installed = "" if self.by_agent else "if sm-profiler is installed in the container, "  # whose monitor ran
        return (
            f"{installed}{NO_KNOWN_STEP} A hook that could not start names the reason in the job's log, in a line that begins "
            "with 'sm-profiler:'."
        )


NO_KNOWN_STEP = (
    "no process made a step that is known: a process that only imports a framework makes none, and other loops mark each step "
    "with get_hook().step()."
)


def next_file(seconds: float) -> str:
    """Return a sentence on the first trace file of a job that runs."""
    return (
        f"A trace file is closed and stored after {duration(seconds)} (RotateFileCloseIntervalInSeconds): 'sm-profiler report "
        "--follow' waits for it."
    )


def lost_in_open_file(seconds: float) -> str:
    """Return a sentence, without its period, about data that was in no closed file when a job was ended."""
    return f"Up to {duration(seconds)} of data was in a file that was still open, and is lost"


def _line(text: str) -> str:
    """Return a line of a log; what is too long loses its middle."""
    text = printable(" ".join(text.split()))
    if len(text) <= LINE_BEGINNING + LINE_END:
        return text
    return f"{text[:LINE_BEGINNING]}{CUT}{text[-LINE_END:]}"


def _short(text: str) -> str:
    return cut(printable(" ".join(text.split())), MAX_SHOWN)
