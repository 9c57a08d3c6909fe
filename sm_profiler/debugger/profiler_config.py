"""The profiler configuration of a training job."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.config.profile import API_INTERVALS_MS
from sm_profiler.debugger.disguise import Disguised, is_kind
from sm_profiler.debugger.framework_profile import FrameworkProfile
from sm_profiler.debugger.parsing import decoded
from sm_profiler.debugger.profiler import Profiler
from sm_profiler.debugger.quiet import expect_untrue_warnings
from sm_profiler.debugger.utils import require

if TYPE_CHECKING:
    from sm_profiler.config.explaining import Explanation


@attrs.define(slots=False, init=False)
class ProfilerConfig(Disguised):
    """What a training job's profiler does: pass it to an Estimator as `profiler_config`, or see `sm_profiler.launch`.

    Attributes may be read and set; pipeline variables pass through.
    """

    s3_output_path: Any
    system_monitor_interval_millis: Any
    framework_profile_params: FrameworkProfile | None
    profile_params: Profiler | None
    disable_profiler: Any

    def __init__(
        self,
        s3_output_path: Any = None,
        system_monitor_interval_millis: Any = None,
        framework_profile_params: FrameworkProfile | None = None,
        profile_params: Profiler | None = None,
        disable_profiler: Any = False,  # noqa: FBT002 - the SDK's signature
    ) -> None:
        """Configure a job's profiler.

        Args:
            s3_output_path: where the profile is stored: a str or pipeline variable; an Estimator fills it in.
            system_monitor_interval_millis: milliseconds between two samples of the system metrics: an int or pipeline
                variable.  The API accepts 100, 200, 500, 1000, 5000 and 60000; without one it takes 500.
            framework_profile_params: the framework metrics to collect.
            profile_params: SageMaker Profiler's parameters; it excludes framework metrics.
            disable_profiler: switch everything off.

        Raises:
            AssertionError: a parameter object is of a wrong type.
            ValueError: framework metrics and SageMaker Profiler are both asked for.
        """
        require(
            framework_profile_params is None or is_kind(framework_profile_params, FrameworkProfile),
            "framework_profile_params must be of type FrameworkProfile if specified.",
        )
        require(
            profile_params is None or is_kind(profile_params, Profiler),
            "profile_params must be of type Profiler if specified.",
        )
        if profile_params and framework_profile_params:
            raise ValueError("Profiler will not work when Framework Profiler is ON")
        if type(system_monitor_interval_millis) is int and system_monitor_interval_millis not in API_INTERVALS_MS:
            allowed = ", ".join(map(str, API_INTERVALS_MS))
            warnings.warn(
                f"system_monitor_interval_millis={system_monitor_interval_millis}: the API accepts {allowed}",
                stacklevel=2,
            )
        self.s3_output_path = s3_output_path
        self.system_monitor_interval_millis = system_monitor_interval_millis
        self.framework_profile_params = framework_profile_params
        self.profile_params = profile_params
        self.disable_profiler = disable_profiler
        if framework_profile_params is not None:
            expect_untrue_warnings(everywhere=True)

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def _to_request_dict(self) -> dict[str, Any]:
        """The request's `ProfilerConfig`."""
        request: dict[str, Any] = {}
        if self.s3_output_path is not None and self.disable_profiler is False:
            request["S3OutputPath"] = self.s3_output_path
        request["DisableProfiler"] = self.disable_profiler
        if self.system_monitor_interval_millis is not None:
            request["ProfilingIntervalInMilliseconds"] = self.system_monitor_interval_millis
        for parameters in (self.framework_profile_params, self.profile_params):
            if parameters is not None:
                request["ProfilingParameters"] = parameters.profiling_parameters
        return request

    @classmethod
    def _to_profiler_disabled_request_dict(cls) -> dict[str, Any]:
        """The `ProfilerConfig` of an update that switches profiling off."""
        return {"DisableProfiler": True}

    @classmethod
    def from_request(cls, request: Mapping[str, Any] | str | bytes) -> ProfilerConfig:
        """Make it of the request's `ProfilerConfig`, a DescribeTrainingJob answer or a profilerconfig.json.

        What is read is written back: `from_request(config._to_request_dict())` equals the configuration.

        Args:
            request: the object or its JSON text; keys in any case.

        Raises:
            ConfigError: it is no such object.
        """
        fields = decoded(request)
        parameters = fields.get("ProfilingParameters")
        framework = profiler = None
        if isinstance(parameters, Mapping):
            if any(str(key).lower() == "cpuprofilingduration" for key in parameters):
                profiler = Profiler.from_request(parameters)
            else:
                framework = FrameworkProfile.from_request(parameters)
        return cls(
            s3_output_path=fields.get("S3OutputPath"),
            system_monitor_interval_millis=fields.get("ProfilingIntervalInMilliseconds"),
            framework_profile_params=framework,
            profile_params=profiler,
            disable_profiler=fields.get("DisableProfiler", False),
        )

    def explain(self, rules: Sequence[Any] = (), *, job: Mapping[str, Any] | None = None) -> Explanation:
        """Say in plain words what will be profiled when, and what is odd or wrong about it; print it.

        Args:
            rules: the ProfilerRule objects that go with it.
            job: the rest of the job's request, under the API's names: time limit, network isolation, checkpoints.
        """
        from sm_profiler.config.explaining import explain  # noqa: PLC0415 - only where it is asked for

        requests = [rule.to_profiler_rule_config_dict() for rule in rules]
        return explain(self._to_request_dict(), requests, job=job, now=time.time())
