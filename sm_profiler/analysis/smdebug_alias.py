"""`install_as_smdebug`: the module paths of smdebug, resolved to this package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sm_profiler._lazy import import_part

_ANALYSIS = "sm_profiler.analysis"
_RULES = "sm_profiler.rules"
_HOOK = "sm_profiler.hook.smdebug"
_PARSERS = f"{_ANALYSIS}.parsers"
_RULE_MODULES = (
    "batch_size", "cpu_bottleneck", "dataloader", "gpu_memory_increase", "io_bottleneck", "load_balancing", "low_gpu_utilization",
    "max_initialization_time", "overall_framework_metrics", "overall_system_usage", "profiler_report", "step_outlier",
)  # fmt: skip

# old module → modules that define its names
_MODULES: dict[str, tuple[str, ...]] = {
    "smdebug": ("sm_profiler", _HOOK),
    "smdebug.core": (),
    "smdebug.core.access_layer": (),
    "smdebug.core.access_layer.utils": (f"{_ANALYSIS}.parsers",),
    "smdebug.core.collection": (_HOOK,),
    "smdebug.core.modes": (_HOOK,),
    "smdebug.core.reduction_config": (_HOOK,),
    "smdebug.core.save_config": (_HOOK,),
    "smdebug.exceptions": (f"{_RULES}.rule",),
    "smdebug.pytorch": (_HOOK, f"{_RULES}.trial"),
    "smdebug.pytorch.collection": (_HOOK,),
    "smdebug.pytorch.hook": (_HOOK,),
    "smdebug.pytorch.singleton_utils": (_HOOK,),
    "smdebug.rules": (_RULES,),
    "smdebug.rules.rule": (f"{_RULES}.rule",),
    "smdebug.rules.rule_invoker": (f"{_RULES}.rule",),
    "smdebug.tensorflow": (_HOOK, f"{_RULES}.trial"),
    "smdebug.tensorflow.collection": (_HOOK,),
    "smdebug.tensorflow.keras": (_HOOK,),
    "smdebug.tensorflow.session": (_HOOK,),
    "smdebug.tensorflow.singleton_utils": (_HOOK,),
    "smdebug.trials": (f"{_RULES}.trial",),
    "smdebug.trials.profiler_trial": (f"{_RULES}.trial",),
    "smdebug.trials.utils": (f"{_RULES}.trial",),
    "smdebug.profiler": (f"{_ANALYSIS}.readers", _PARSERS),
    "smdebug.profiler.algorithm_metrics_reader": (f"{_ANALYSIS}.readers",),
    "smdebug.profiler.metrics_reader_base": (f"{_ANALYSIS}.readers",),
    "smdebug.profiler.system_metrics_reader": (f"{_ANALYSIS}.readers",),
    "smdebug.profiler.profiler_constants": (f"{_ANALYSIS}.constants",),
    "smdebug.profiler.python_profile_utils": (f"{_ANALYSIS}.python_stats", f"{_ANALYSIS}.constants"),
    "smdebug.profiler.python_profiler": (f"{_ANALYSIS}.python_stats", f"{_ANALYSIS}.constants"),
    "smdebug.profiler.system_profiler_file_parser": (_PARSERS,),
    "smdebug.profiler.tf_profiler_parser": (_PARSERS,),
    "smdebug.profiler.trace_event_file_parser": (_PARSERS,),
    "smdebug.profiler.utils": (f"{_ANALYSIS}.times", f"{_ANALYSIS}.parsers"),
    "smdebug.profiler.analysis": (_ANALYSIS,),
    "smdebug.profiler.analysis.python_profile_analysis": (f"{_ANALYSIS}.python_profiles", f"{_ANALYSIS}.python_stats"),
    "smdebug.profiler.analysis.python_stats_reader": (f"{_ANALYSIS}.python_profiles",),
    "smdebug.profiler.analysis.notebook_utils": (_ANALYSIS,),
    "smdebug.profiler.analysis.notebook_utils.heatmap": (f"{_ANALYSIS}.histograms",),
    "smdebug.profiler.analysis.notebook_utils.metrics_histogram": (f"{_ANALYSIS}.histograms",),
    "smdebug.profiler.analysis.notebook_utils.step_histogram": (f"{_ANALYSIS}.histograms",),
    "smdebug.profiler.analysis.notebook_utils.step_timeline_chart": (f"{_ANALYSIS}.timeline_charts",),
    "smdebug.profiler.analysis.notebook_utils.timeline_charts": (f"{_ANALYSIS}.timeline_charts",),
    "smdebug.profiler.analysis.notebook_utils.training_job": (f"{_ANALYSIS}.readers",),
    "smdebug.profiler.analysis.utils": (_ANALYSIS,),
    "smdebug.profiler.analysis.utils.merge_timelines": (f"{_ANALYSIS}.merged_timeline",),
    "smdebug.profiler.analysis.utils.pandas_data_analysis": (f"{_ANALYSIS}.statistics",),
    "smdebug.profiler.analysis.utils.profiler_data_to_pandas": (f"{_ANALYSIS}.pandas_frame",),
    "smdebug.profiler.analysis.utils.python_profile_analysis_utils": (f"{_ANALYSIS}.python_stats",),
    "smdebug.profiler.analysis.utils.pytorch_dataloader_analysis": (f"{_ANALYSIS}.dataloader",),
    "smdebug.profiler.analysis.rules": (_RULES,),
    **{f"smdebug.profiler.analysis.rules.{name}": (_RULES,) for name in _RULE_MODULES},
}
# old name → name in this package, in all modules or in one
_RENAMED = {"modes": "ModeKeys"}
_RENAMED_IN = {
    ("smdebug.tensorflow", "get_hook"): "get_tensorflow_hook",
    ("smdebug.tensorflow.singleton_utils", "get_hook"): "get_tensorflow_hook",
}
# names of the old library's other half, which saves and analyzes tensors
_TENSOR_NAMES = frozenset({
    "LocalTrial", "S3Trial", "Trial", "add_to_collection", "add_to_collections", "get_collection", "get_collections",
})  # fmt: skip
_PRIVATE = ("__path__", "__file__", "__all__", "__wrapped__")


def install_as_smdebug() -> None:
    """Make `import smdebug…` import the objects of this package, in this process from now on.

    An installed smdebug is not changed but can no longer be imported. Objects already imported from it keep working.
    Modules of smdebug without a counterpart raise `ModuleNotFoundError`.
    """
    if any(isinstance(finder, _SmdebugFinder) for finder in sys.meta_path):
        return
    for name in [name for name in sys.modules if name == "smdebug" or name.startswith("smdebug.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _SmdebugFinder())


class _SmdebugFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target  # the name is all that matters
        if fullname not in _MODULES:
            if fullname.startswith("smdebug."):
                why = (
                    "it is internal" if fullname.startswith("smdebug.profiler.") else "it covers profiling, not tensors"
                )
                message = f"No module named {fullname!r}: sm_profiler has no counterpart; {why}"
                raise ModuleNotFoundError(message, name=fullname)
            return None
        return ModuleSpec(fullname, _SmdebugLoader(), origin="sm_profiler", is_package=True)


class _SmdebugLoader(Loader):
    """Loader of empty modules that look up their names on access."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _SmdebugModule(spec.name, f"{spec.name}, provided by sm_profiler")

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing: names are looked up on access."""


class _SmdebugModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name not in _PRIVATE:
            for target in _MODULES[self.__name__]:
                own = _RENAMED_IN.get((self.__name__, name), _RENAMED.get(name, name))
                found = getattr(import_part(target, f"{self.__name__}.{name}"), own, None)
                if found is not None:
                    return found
        if name in _TENSOR_NAMES:  # ImportError, because `from … import` replaces the text of an AttributeError
            message = f"{self.__name__}.{name} has no counterpart in sm_profiler, which covers profiling, not tensors"
            raise ImportError(message, name=self.__name__)
        message = f"module {self.__name__!r}, provided by sm_profiler, has no attribute {name!r}"
        raise AttributeError(message)
