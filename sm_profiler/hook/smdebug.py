"""smdebug's hooks for training scripts: calls that concern profiling reach this hook, those of tensors do nothing.

`install_as_smdebug` lets scripts import these names from smdebug's modules; arguments are those of smdebug 1.0.34.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from attrs import define, field
from typing_extensions import Self

from sm_profiler.hook import entry
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.printable import logger_for

logger = logger_for("sm_profiler")
H = TypeVar("H", bound="BaseHook")
_current: list[BaseHook] = []  # at most one
_told: list[str] = []  # the first call that saves nothing: one line reports all


class CollectionKeys:
    """Names of smdebug's collections of tensors."""

    DEFAULT = "default"
    ALL = "all"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    BIASES = "biases"
    LAYERS = "layers"
    SM_METRICS = "sm_metrics"
    OPTIMIZER_VARIABLES = "optimizer_variables"
    TENSORFLOW_SUMMARIES = "tensorflow_summaries"
    METRICS = "metrics"
    HYPERPARAMETERS = "hyperparameters"
    PREDICTIONS = "predictions"
    LABELS = "labels"
    FEATURE_IMPORTANCE = "feature_importance"
    AVERAGE_SHAP = "average_shap"
    FULL_SHAP = "full_shap"
    TREES = "trees"


@define
class SaveConfigMode:
    """When smdebug saves tensors in one mode; nothing is saved here."""

    save_interval: Any = None
    start_step: Any = None
    end_step: Any = None
    save_steps: Any = None

    def should_save_step(self, step_num: Any) -> bool:
        """Return False: no step's tensors are saved."""
        del step_num
        return False


@define
class SaveConfig:
    """When smdebug saves tensors; nothing is saved here."""

    mode_save_configs: Any = None
    save_interval: Any = None
    start_step: Any = None
    end_step: Any = None
    save_steps: Any = None

    def get_save_config(self, mode: Any) -> SaveConfigMode:
        """Return the settings of a mode."""
        own = self.mode_save_configs.get(mode) if isinstance(self.mode_save_configs, dict) else None
        if isinstance(own, SaveConfigMode):
            return own
        return SaveConfigMode(self.save_interval, self.start_step, self.end_step, self.save_steps)

    def set_save_config(self, mode: Any, save_config_mode: Any) -> None:
        """Keep the settings of a mode."""
        known = self.mode_save_configs if isinstance(self.mode_save_configs, dict) else {}
        self.mode_save_configs = {**known, mode: save_config_mode}

    def should_save_step(self, mode: Any, step_num: Any) -> bool:
        """Return False: no step's tensors are saved."""
        del mode, step_num
        return False


@define
class ReductionConfig:
    """Numbers that smdebug saves in place of a tensor; none is saved here."""

    reductions: Any = None
    abs_reductions: Any = None
    norms: Any = None
    abs_norms: Any = None
    save_raw_tensor: Any = False
    save_shape: Any = False


def _listed(given: Any) -> list[Any]:
    return list(given or ())


def _set_of(given: Any) -> set[Any]:
    return set(given or ())


@define(eq=False)
class Collection:
    """A named set of tensors, of which none is saved."""

    name: Any
    include_regex: list[Any] = field(default=None, converter=_listed)
    tensor_names: set[Any] = field(default=None, converter=_set_of)
    reduction_config: Any = None
    save_config: Any = None
    save_histogram: Any = True

    def include(self, t: Any) -> None:
        """Keep one expression for names, or several."""
        self.include_regex.extend(t if isinstance(t, (list, tuple)) else [t])

    def add_tensor_name(self, tname: Any) -> None:
        """Keep the name of a tensor."""
        self.tensor_names.add(tname)

    def remove_tensor_name(self, tname: Any) -> None:
        """Forget the name of a tensor."""
        self.tensor_names.discard(tname)

    def has_tensor_name(self, tname: Any) -> bool:
        """Return whether the name was added."""
        return tname in self.tensor_names

    def add_module_tensors(self, module: Any, inputs: bool = False, outputs: bool = True) -> None:
        """Do nothing: no tensor of the module is saved."""

    def add_keras_layer(self, layer: Any, inputs: bool = False, outputs: bool = True) -> None:
        """Do nothing: no tensor of the layer is saved."""

    def add(self, arg: Any) -> None:
        """Do nothing: no tensor is saved."""

    def add_for_mode(self, arg: Any, mode: Any = None) -> None:
        """Do nothing: no tensor is saved."""


class Collections(dict[Any, Collection]):
    """The collections of a hook; each exists once it is requested."""

    def __missing__(self, name: Any) -> Collection:
        found = self[name] = Collection(name)
        return found


class BaseHook:
    """A hook with the methods that all of smdebug's have.

    It needs no profile: in a job that is not profiled, all calls do nothing, so that the script runs as it is.
    """

    def __init__(
        self,
        out_dir: Any = None,
        export_tensorboard: Any = False,
        tensorboard_dir: Any = None,
        dry_run: Any = False,
        reduction_config: Any = None,
        save_config: Any = None,
        include_regex: Any = None,
        include_collections: Any = None,
        save_all: Any = False,
        include_workers: Any = "one",
    ) -> None:
        del export_tensorboard, tensorboard_dir, dry_run, include_regex, include_workers
        super().__init__()  # of a class of TensorFlow's
        self.out_dir = out_dir
        self.reduction_config, self.save_config = reduction_config, save_config
        self.include_collections, self.save_all = include_collections, save_all
        self._collections = Collections()
        self._marked = ExitStack()
        if reduction_config or save_config or include_collections or save_all or out_dir:
            _saves_nothing(type(self).__name__)
        entry.get_hook()

    @classmethod
    def create_from_json_file(cls, json_file_path: Any = None) -> Self:
        """Return the process's hook of this class; the job's own configuration decides what it records."""
        del json_file_path
        return _of_class(cls)

    def set_mode(self, mode: ModeKeys) -> None:
        """Count the next steps under this mode."""
        if hook := entry.get_hook():
            hook.set_mode(mode)

    def record_trace_events(
        self,
        timestamp: Any,
        training_phase: Any = "",
        op_name: Any = "",
        phase: Any = "X",
        duration: Any = 1,
        **kwargs: Any,
    ) -> None:
        """Record an event in the timeline: its start and its duration are in seconds."""
        if hook := entry.get_hook():
            hook.record_trace_events(training_phase, op_name, phase, timestamp, duration, **kwargs)

    def close(self) -> None:
        """End the profile."""
        if hook := entry.get_hook():
            hook.close()

    def save_scalar(self, name: Any, value: Any, sm_metric: Any = False, timestamp: Any = None) -> None:
        """Save nothing."""
        del name, value, sm_metric, timestamp
        _saves_nothing("save_scalar")

    def save_tensor(
        self, tensor_name: Any, tensor_value: Any, collections_to_write: Any = CollectionKeys.DEFAULT
    ) -> None:
        """Save nothing."""
        del tensor_name, tensor_value, collections_to_write
        _saves_nothing("save_tensor")

    def record_tensor_value(self, tensor_name: Any, tensor_value: Any) -> None:
        """Save nothing."""
        del tensor_name, tensor_value
        _saves_nothing("record_tensor_value")

    def should_save_tensor_or_collection(self, tensor_name: Any, collection_name: Any) -> bool:
        """Return False: no tensor is saved."""
        del tensor_name, collection_name
        return False

    def get_collection(self, name: Any, create: Any = True) -> Collection | None:
        """Return a collection, of which nothing is saved."""
        return self._collections[name] if create else self._collections.get(name)

    def get_collections(self) -> Collections:
        """Return the collections by name."""
        return self._collections

    def add_collection(self, collection: Any) -> None:
        """Keep a collection, of which nothing is saved."""
        self._collections[getattr(collection, "name", collection)] = collection

    def export_collections(self) -> None:
        """Do nothing: there are no collections to describe."""

    def has_default_configuration(self) -> bool:
        """Return False: smdebug would else let the script replace its hook."""
        return False

    def has_default_hook_configuration(self, default_saved_collections: Any = None) -> bool:
        """Return False, as `has_default_configuration`."""
        del default_saved_collections
        return False


class Hook(BaseHook):
    """`smdebug.pytorch.Hook`: models and losses need no registration, since they are found when they run."""

    def register_hook(self, module: Any) -> None:
        """Do nothing: models are found when they run."""

    def register_module(self, module: Any) -> None:
        """Do nothing: models are found when they run."""

    def register_loss(self, loss_module: Any) -> None:
        """Do nothing: no loss is saved."""

    def forward_pre_hook(self, module: Any, inputs: Any) -> None:
        """Do nothing: forwards are timed without it."""

    def forward_hook(self, module: Any, inputs: Any, outputs: Any) -> None:
        """Do nothing: no output is saved."""

    def backward_hook(self, tname: Any) -> Callable[[Any], None]:
        """Return a function that does nothing: no gradient is saved."""
        del tname
        return lambda _gradient: None

    def count_parameters(self, model: Any) -> int:
        """Return the number of trainable parameters of a model."""
        return sum(one.numel() for _, one in model.named_parameters() if one.requires_grad)


class TensorflowHook(BaseHook):
    """Methods of `smdebug.tensorflow.KerasHook`, `SessionHook` and `EstimatorHook`."""

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer as it is."""
        return optimizer

    def wrap_tape(self, tape: Any) -> Any:
        """Return the tape as it is."""
        return tape

    def save_tape_logs(self, model_inputs: Any = None, outputs: Any = None) -> None:
        """Save nothing."""
        del model_inputs, outputs
        _saves_nothing("save_tape_logs")

    def save_smdebug_logs(self, logs: Any) -> None:
        """Save nothing."""
        del logs
        _saves_nothing("save_smdebug_logs")

    def should_save_layer(self, layer_name: Any) -> bool:
        """Return False: no layer is saved."""
        del layer_name
        return False

    def register_model(self, model: Any) -> None:
        """Do nothing: no layer is saved."""

    def set_gradients(self, gradients: Any = None, gradients_and_variables: Any = None) -> None:
        """Do nothing: no gradient is saved."""

    def set_optimizer_variables(self, optimizer_variables: Any) -> None:
        """Do nothing: no variable is saved."""

    def add_to_collection(self, collection_name: Any, variable: Any) -> None:
        """Do nothing: no variable is saved."""

    def profiling_start_batch(self, mode: ModeKeys = ModeKeys.TRAIN) -> None:
        """Begin a step of a loop that the script writes itself."""
        self.profiling_end_batch()
        self._marked.enter_context(self.profiler(mode))

    def profiling_end_batch(self, mode: ModeKeys = ModeKeys.TRAIN) -> None:
        """End the step that `profiling_start_batch` began."""
        del mode
        self._marked.close()

    def profiling_end(self) -> None:
        """End the last step."""
        self._marked.close()

    def profiler(self, mode: ModeKeys = ModeKeys.TRAIN) -> AbstractContextManager[None]:
        """Mark one step of a loop that the script writes itself."""
        return _step(mode)


@contextmanager
def _step(mode: ModeKeys) -> Iterator[None]:
    with ExitStack() as stack:
        if hook := entry.get_hook():
            hook.set_mode(mode)
            stack.enter_context(hook.step())
        yield


@cache
def _tensorflow_classes() -> dict[str, type[TensorflowHook]]:
    """Return the classes that derive from TensorFlow's, by name; this loads TensorFlow."""
    tensorflow: Any = import_module("tensorflow")

    class KerasHook(TensorflowHook, tensorflow.keras.callbacks.Callback):  # type: ignore[misc]
        """`smdebug.tensorflow.KerasHook`: a callback that does nothing, since Keras's own loops mark the steps."""

    class SessionHook(TensorflowHook, tensorflow.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        """`smdebug.tensorflow.SessionHook`: accepted; sessions of TensorFlow 1 have no steps here."""

    class EstimatorHook(SessionHook):
        """`smdebug.tensorflow.EstimatorHook`: as `SessionHook`."""

    return {"KerasHook": KerasHook, "SessionHook": SessionHook, "EstimatorHook": EstimatorHook}


def __getattr__(name: str) -> Any:
    if name not in {"KerasHook", "SessionHook", "EstimatorHook"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _tensorflow_classes()[name]


def get_hook(json_config_path: Any = None, create_if_not_exists: Any = False) -> Hook | None:
    """Return the hook of a script with PyTorch; None if there is none, no profile is recorded and none is to be created."""
    del json_config_path
    return _get(lambda: Hook, create=create_if_not_exists)


def get_tensorflow_hook(
    hook_type: Any = None, json_config_path: Any = None, create_if_not_exists: Any = False
) -> TensorflowHook | None:
    """Return the hook of a script with TensorFlow; None if there is none, no profile is recorded and none is to be created.

    Args:
        hook_type: `keras`, `session` or `estimator`; by default that of Keras.
        json_config_path: ignored.
        create_if_not_exists: create a hook that does nothing if no profile is recorded.
    """
    del json_config_path
    if hook_type is None and _current and isinstance(_current[0], TensorflowHook):
        return _current[0]

    kind = {"session": "SessionHook", "estimator": "EstimatorHook"}.get(hook_type, "KerasHook")
    return _get(lambda: _tensorflow_classes()[kind], create=create_if_not_exists)


def _get(wanted: Callable[[], type[H]], *, create: Any) -> H | None:
    return _of_class(wanted()) if _current or create or entry.get_hook() is not None else None


def _of_class(wanted: type[H]) -> H:
    if not _current or not isinstance(_current[0], wanted):
        _current[:] = [wanted()]
    found = _current[0]
    assert isinstance(found, wanted)
    return found


def set_hook(custom_hook: Any) -> None:
    """Let `get_hook` return this hook."""
    _current[:] = [custom_hook]


def del_hook() -> None:
    """Forget the hook that `get_hook` returns; the profile goes on."""
    _current.clear()


def _saves_nothing(call: str) -> None:
    if not _told:
        _told.append(call)
        logger.warning(
            "sm-profiler: %s: smdebug's calls that save tensors and scalars are accepted and do nothing; this hook profiles",
            call,
        )
