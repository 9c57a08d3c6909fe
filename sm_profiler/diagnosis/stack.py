"""Names of the same repairs in each framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


@attrs.frozen
class Stack:
    """A framework's names for the same repairs.

    Attributes:
        compiler: what compiles functions.
        fewer_launches: what launches fewer operators a step.
        evaluation: how to evaluate less, and what keeps no gradients.
        saving: how to save while the training goes on.
        generators: what reads a generator's batches in other processes; has a place for the generator's name.
        optimizer: what runs the optimizer in fewer operators.
        half_precision: what computes in half precision, mostly with tensor cores.
        fusing: what makes fewer kernels of the same operators.
        compiles_steps: what compiles a step that runs eagerly.
        one_by_one: its compiled functions launch one operator after the other.
        memory: what shows the holders of memory.
        less_evaluation: the arguments that set how often it evaluates and saves.
    """

    compiler: str
    fewer_launches: str
    evaluation: str
    saving: str
    generators: str
    optimizer: str
    half_precision: str
    fusing: str
    compiles_steps: str = ""
    one_by_one: bool = False
    memory: str = "tracemalloc shows where Python's objects were made."
    less_evaluation: str = ""


_WITHOUT_GRADIENTS = "Evaluate less often or on a fixed sample, with a larger batch (no gradients are kept)"
_IN_A_THREAD = "Save in the background: copy the state to the CPU and write it in a thread"
_TF_DATA = (
    "turn {}() into a tf.data pipeline (from_tensor_slices or TFRecordDataset, with map(…, num_parallel_calls=tf.data.AUTOTUNE) "
    "and prefetch)."
)
_POLICY = "{}.mixed_precision.set_global_policy('mixed_bfloat16')"

PYTORCH = Stack(
    "torch.compile",
    "torch.compile or CUDA graphs",
    f"{_WITHOUT_GRADIENTS} under torch.inference_mode()",
    f"{_IN_A_THREAD}, or use torch.distributed.checkpoint.async_save.",
    "turn {}() into a Dataset (an IterableDataset if it is a stream) and read it with DataLoader(…, num_workers=2, "
    "persistent_workers=True).",
    "Use a fused or foreach implementation (fused=True, foreach=True), if the optimizer has one.",
    "torch.autocast with bfloat16, or at least torch.set_float32_matmul_precision('high')",
    "torch.compile, fused implementations (scaled_dot_product_attention, fused optimizers and norms), in-place operations, "
    "channels_last",
    memory="tracemalloc, or torch.cuda.memory_summary() on a GPU, shows what holds them.",
)
JAX = Stack(
    "jax.jit",
    "jax.jit over the whole step, or jax.lax.scan over several",
    _WITHOUT_GRADIENTS,
    f"{_IN_A_THREAD}, as orbax.checkpoint.AsyncCheckpointer does.",
    "move what {}() does for a batch into a source of grain or a Dataset of torch, and read it with worker processes "
    "(grain.DataLoader(…, worker_count=2), or torch's DataLoader(…, num_workers=2, persistent_workers=True)).",
    "Call the optimizer's update inside the function that jax.jit compiles.",
    "layers with dtype=jnp.bfloat16",
    "jax.jit over the whole step, jax.nn.dot_product_attention",
    memory="jax.live_arrays() and jax.profiler.save_device_memory_profile(…) show what holds them. Each new shape also adds a compiled "
    "function to the cache of jax.jit: pad to a few lengths, or call jax.clear_caches().",
)
TENSORFLOW = Stack(
    "tf.function(jit_compile=True)",
    "tf.function over the whole step or over a loop of several, and jit_compile=True",
    _WITHOUT_GRADIENTS,
    f"{_IN_A_THREAD} (tf.train.CheckpointOptions(enable_async=True)).",
    _TF_DATA,
    "Call the optimizer inside the tf.function of the step.",
    _POLICY.format("tf.keras"),
    "tf.function(jit_compile=True)",
    "Decorate the function of a step with @tf.function, which launches its operators in C++.",
    one_by_one=True,
)
KERAS = Stack(
    "jit_compile=True in compile()",
    "steps_per_execution and jit_compile=True in compile()",
    "Evaluate less often (validation_freq) or on a fixed sample (validation_steps), with a larger validation_batch_size",
    "Save at the end of an epoch instead of every few batches (save_freq='epoch'), or the weights only (save_weights_only=True).",
    "turn {}() into a PyDataset with workers=2 and use_multiprocessing=True, or into a tf.data pipeline.",
    "Leave run_eagerly=True out of compile().",
    _POLICY.format("keras"),
    "jit_compile=True in compile()",
    "Leave run_eagerly=True out of compile() (and tf.config.run_functions_eagerly out of the script).",
    one_by_one=True,
    less_evaluation="validation_freq or validation_steps of fit(), save_freq of ModelCheckpoint",
)

_STACKS = {"keras": KERAS, "tensorflow": TENSORFLOW, "jax": JAX}


def stack_of(metadata: Iterable[Mapping[str, Any]]) -> Stack:
    """Return the framework that marks the steps of all processes; PyTorch, if they differ."""
    frameworks = {str(one.get("framework")) for one in metadata}
    return _STACKS.get(frameworks.pop(), PYTORCH) if len(frameworks) == 1 else PYTORCH
