"""The profiler configuration of a training job."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.config.api import CPU_PROFILING, INTERVALS_MS, canonical, decode_config, shown
from sm_profiler.debugger.framework_profile import FrameworkProfile
from sm_profiler.debugger.images import AwsImage, is_on, warn_of_old
from sm_profiler.debugger.profiler import Profiler
from sm_profiler.debugger.sdk_compat import SdkValue, drop_deprecation_warnings, is_kind, local_of_caller
from sm_profiler.debugger.utils import require
from sm_profiler.settings import AUTO

if TYPE_CHECKING:
    from sm_profiler.config.explaining import Explanation


@attrs.define(slots=False, init=False, unsafe_hash=False)
class ProfilerConfig(SdkValue):
    """Profiler configuration of a training job.

    Pass it to an Estimator as `profiler_config`, or to a function of `sm_profiler.launch`. Attributes can be assigned.

    Attributes:
        s3_output_path: S3 URI that the profile is stored under, or a pipeline variable.
        system_monitor_interval_millis: milliseconds between two samples of the system metrics.
        framework_profile_params: framework metrics to collect.
        profile_params: parameters of SageMaker Profiler.
        disable_profiler: True switches everything off.
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
        disable_profiler: Any = False,  # the SDK's signature
    ) -> None:
        """Configure a job's profiler.

        Args:
            s3_output_path: S3 URI that the profile is stored under, or a pipeline variable. An Estimator sets it to the
                job's output path if it is None.
            system_monitor_interval_millis: milliseconds between two samples of the system metrics, or a pipeline variable.
                The API accepts 100, 200, 500, 1000, 5000 and 60000, and uses 500 by default.
            framework_profile_params: framework metrics to collect; None collects system metrics only.
            profile_params: parameters of SageMaker Profiler, which excludes framework metrics.
            disable_profiler: switch everything off.

        Raises:
            AssertionError: a parameter object has the wrong type.
            ValueError: both framework metrics and SageMaker Profiler are requested.
        """
        require(
            not is_kind(s3_output_path, FrameworkProfile),
            "s3_output_path must be an S3 URI, not a FrameworkProfile: ProfilerConfig(framework_profile_params=…)",
        )
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
        if type(system_monitor_interval_millis) is int and system_monitor_interval_millis not in INTERVALS_MS:
            allowed = ", ".join(map(str, INTERVALS_MS))
            warnings.warn(
                f"system_monitor_interval_millis={shown(system_monitor_interval_millis)}: the API accepts {allowed}",
                stacklevel=2,
            )
        self.s3_output_path = s3_output_path
        self.system_monitor_interval_millis = system_monitor_interval_millis
        self.framework_profile_params = framework_profile_params
        self.profile_params = profile_params
        self.disable_profiler = disable_profiler
        if framework_profile_params is not None:
            drop_deprecation_warnings(everywhere=True)

    def _to_request_dict(self) -> dict[str, Any]:
        self._warn_of_hook_that_stays_off(local_of_caller("estimator"))
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

    def _warn_of_hook_that_stays_off(self, estimator: Any) -> None:
        """Warn if an SDK v2 Estimator requests framework metrics from a hook that is off, or too new for the container.

        An image of the user's own may switch it on.
        """
        if self.framework_profile_params is None or self.disable_profiler is True or estimator is None:
            return
        image = AwsImage.of_estimator(estimator)
        warn_of_old(image, stacklevel=3)
        switch = (getattr(estimator, "environment", None) or {}).get(AUTO.name)
        if is_on(switch) or (image is None and switch is None):
            return
        shown_switch = "" if switch is None else f", but {shown(switch)}"
        warnings.warn(
            f"framework metrics are configured, but {AUTO.name} is not on in the Estimator's environment{shown_switch}: unless the "
            f"script starts the hook itself, system metrics alone are recorded. Add environment={{'{AUTO.name}': '1'}}, or call "
            "sm_profiler.launch.attach(estimator, profiler_config, rules), which sets it",
            stacklevel=3,
        )

    @classmethod
    def _to_profiler_disabled_request_dict(cls) -> dict[str, Any]:
        """Return the `ProfilerConfig` of an update that switches profiling off."""
        return {"DisableProfiler": True}

    @classmethod
    def from_request(cls, request: Mapping[str, Any] | str | bytes) -> ProfilerConfig:
        """Return the configuration in a request, the inverse of `_to_request_dict`.

        Args:
            request: a `ProfilerConfig` of the API, a profilerconfig.json, a CreateTrainingJob request or a
                DescribeTrainingJob answer, as an object or its JSON text; keys in any case.

        Raises:
            ConfigError: the request is not a JSON object.
        """
        fields = decode_config(request)
        parameters = fields.get("ProfilingParameters")
        framework = profiler = None
        if isinstance(parameters, Mapping):
            if CPU_PROFILING in canonical(parameters, (CPU_PROFILING,)):
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
        """Explain in plain English what will be profiled when, and what is odd or wrong; print the result.

        Args:
            rules: the job's ProfilerRule objects.
            job: the rest of the CreateTrainingJob request, of which the time limit, network isolation and checkpoints are
                taken into account.
        """
        from sm_profiler.config.explaining import explain  # training containers never need it

        requests = [rule.to_profiler_rule_config_dict() for rule in rules]
        return explain(self._to_request_dict(), requests, job=job, now=time.time())
