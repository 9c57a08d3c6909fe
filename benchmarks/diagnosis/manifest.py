"""The planted problems: which script in which size, and what a right diagnosis is."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import attrs

PROBLEMS = Path(__file__).parent / "problems"
GPU_PROBLEMS = Path(__file__).parent / "gpu_problems"  # for a CUDA device
MARKER = "# GUILTY"
HEALTHY = ("BALANCED", "COMPUTE_BOUND")
CLOSE = 1.2  # times the other; either of two problems this close may lead
SMALL = 0.2  # of the loop; a second problem that costs less need not be named
NEAR = 3  # lines: a statement that spans some lines counts from any of them


@attrs.frozen
class Line:
    """A guilty line, and the function that it is in unless that function contains the whole training loop."""

    number: int
    function: str
    what: str


@attrs.frozen
class Case:
    """One planted problem in one size.

    Attributes:
        script: name of the script in `problems`.
        size: options of the script.
        expected: classes that lead a right diagnosis.
        also: classes of which a right diagnosis names one as well, for two problems at once.
        about: the problem, for the table.
        line: marker of the line to name, if the script has several; None if the problem is in no line.
        accepted: classes that are not wrong, although a better one exists.
        sample: True if `make test` runs it.
        diary: entry of the script's diary that the finding's share is compared with, "" for none.
        second: entry of the diary for the other of two problems.
        others: entry of the diary for the same work in steps without the problem, which the repair leaves.
        repaired: True for the repaired twin as a case of its own.
        gains: False if a repaired twin is not faster per step, or its gain is not in the loop.
    """

    script: str
    size: dict[str, float]
    expected: tuple[str, ...]
    about: str
    also: tuple[str, ...] = ()
    line: str | None = ""
    accepted: tuple[str, ...] = ()
    sample: bool = False
    gains: bool = True
    diary: str = ""
    second: str = ""
    others: str = ""
    repaired: bool = False

    @property
    def name(self) -> str:
        """Return the script and its size, which is unique."""
        sizes = (f"{key}{value}" for key, value in self.size.items())
        return "-".join([self.script, *sizes, *(["repaired"] if self.repaired else [])])

    @property
    def path(self) -> Path:
        """Return the script's file."""
        return (GPU_PROBLEMS if self.on_gpu else PROBLEMS) / f"{self.script}.py"

    @property
    def on_gpu(self) -> bool:
        """Return True if the script needs a CUDA device."""
        return self.script.startswith("gpu_")

    @property
    def ranks(self) -> bool:
        """Return True if the script starts several ranks."""
        return "from ranks import" in self._source()

    def _source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def healthy(self) -> bool:
        """Return True if nothing is planted."""
        return "BALANCED" in self.expected

    def guilty(self) -> list[Line]:
        """Return the lines that a right diagnosis may name."""
        if self.line is None:
            return []
        source = self._source()
        lines = []
        for number, text in enumerate(source.splitlines(), 1):
            code, found, what = text.partition(MARKER)
            if found and code.strip() and (not self.line or self.line in what):
                lines.append(Line(number, _function(source, number), what.strip(": ")))
        return lines

    def twin(self) -> Case | None:
        """Return the repaired twin as a case of its own; None if a profiler may still find something in it."""
        if (
            self.healthy or "HOST_BOUND" in self.expected or self.on_gpu
        ):  # larger batches make the fixed cost of an operator smaller, not small
            return None
        return Case(self.script, self.size, HEALTHY, f"repaired: {self.about}", gains=False, repaired=True)

    def as_measured(self, shares: dict[str, float]) -> Case:
        """Return the case with the problem in the lead that took more time according to the diary.

        The sizes of two problems follow from the length of a healthy step, which other load may have stretched.
        """
        if not self.second:
            return self
        first, second = shares.get(self.diary, 0.0), shares.get(self.second, 0.0)
        if max(first, second) < CLOSE * min(first, second):
            return attrs.evolve(self, expected=self.expected + self.also, also=self.expected + self.also, line=None)
        if first > second:
            return self if second >= SMALL else attrs.evolve(self, also=())
        swapped = attrs.evolve(
            self, expected=self.also, also=self.expected, diary=self.second, second=self.diary, line=self.second
        )
        return swapped if first >= SMALL else attrs.evolve(swapped, also=())

    def varied(self, seed: int) -> Case:
        """Return the case with other sizes, the same for the same seed."""
        draw = random.Random(f"{seed} {self.name}")  # sizes, no secret
        size = {
            key: value if key in FIXED else _near(value, *VARY.get(key, (0.8, 1.25)), draw)
            for key, value in self.size.items()
        }
        return attrs.evolve(self, size=size)


FIXED = {"slow", "after", "dies", "patience", "problem", "backend", "ahead", "jit", "part", "item", "apart"}
HEADS = 16  # of the transformers on a GPU: their widths are multiples
VARY = {"share": (0.9, 1.15), "steps": (1.0, 1.2), "rare": (0.85, 1.15), "seconds": (1.0, 1.3)}


def _near(value: float, low: float, high: float, draw: random.Random) -> float:
    """Return a value times a random factor; multiples of the heads stay such, which networks with attention need."""
    changed = type(value)(value * draw.uniform(low, high))
    return changed if value % HEADS or changed < HEADS else int(changed // HEADS * HEADS)


def _function(source: str, number: int) -> str:
    """Return the innermost function around a line; "" if it is the one with the training loop, or none."""
    inner = ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.lineno <= number <= (node.end_lineno or 0):
            body = source.splitlines()[node.lineno - 1 : node.end_lineno]
            inner = "" if any(line.endswith("# LOOP") for line in body) else node.name
    return inner


LOGGING = ("LOGGING", "SYNC_BOUND")
SAVING = ("CHECKPOINTING", "PERIODIC_STALL")
SMALL_STEPS = ("BATCH_TOO_SMALL", "HOST_BOUND")


def _keras(number: int, backend: str) -> Iterator[Case]:
    """Return Keras's cases on one backend; on JAX, the step hides the loading even without prefetching."""
    on, about = {"backend": number}, f"Keras on {backend}:"
    for size in ({"width": 1280}, {"width": 1600, "batch": 96}):  # long enough to outweigh the imports
        yield Case("keras_fit", {"problem": 0, "steps": 800, **size, **on}, HEALTHY, f"{about} nothing")
    for more in ({}, {"share": 0.35}):
        for problem, expected, what, line in (
            (1, ("SLOW_CALLBACK",), "a slow callback", "callback"),
            (2, SAVING, "a checkpoint every N steps", "saving"),
            (4, ("INPUT_BOUND",), "a slow PyDataset", "dataset"),
        ):
            size = {"problem": problem, **more, **on}
            diary = {1: "callback", 2: "saving"}.get(problem, "")
            yield Case("keras_fit", size, expected, f"{about} {what}", line=line, diary=diary)
        yield Case("keras_pipeline", {"ahead": 1, **more, **on}, ("INPUT_BOUND",), f"{about} a slow map function")
    for share in (0.5, 0.6):
        size = {"problem": 3, "share": share, **on}
        yield Case("keras_fit", size, ("EVALUATION_BOUND",), f"{about} much evaluation", line=None, gains=False)
    if backend != "JAX":
        size = {"ahead": 0, "share": 0.4, **on}
        yield Case("keras_pipeline", size, ("INPUT_BOUND",), f"{about} no prefetching", diary="loading")
    yield Case("keras_tiny", on, SMALL_STEPS, f"{about} tiny steps", line=None, gains=False)
    if backend != "PyTorch":  # nothing is compiled there by default
        yield Case("keras_again", on, ("RECOMPILATION",), f"{about} compiled at each step")
        yield Case(
            "keras_again", {"shapes": 40, "jit": 1, **on}, ("RECOMPILATION",), f"{about} a new length at most steps"
        )
        size = {"layers": 100, **on}
        yield Case(
            "keras_compile", size, ("INITIALIZATION_BOUND",), f"{about} long compilation", line=None, gains=False
        )


CASES = (
    Case("mlp", {"width": 512, "batch": 96}, HEALTHY, "nothing", sample=True),
    Case("mlp", {"width": 640, "batch": 64, "steps": 300}, HEALTHY, "nothing"),
    Case("cnn", {"channels": 24}, HEALTHY, "nothing"),
    Case("cnn", {"channels": 12, "batch": 64, "steps": 120}, HEALTHY, "nothing"),
    Case("transformer", {"width": 96}, HEALTHY, "nothing"),
    Case("transformer", {"width": 192, "length": 64, "batch": 6, "steps": 120}, HEALTHY, "nothing"),
    Case("by_hand", {"share": 0.0}, HEALTHY, "nothing, without loader and optimizer"),
    Case("by_hand", {"share": 0.0, "width": 700, "steps": 150}, HEALTHY, "nothing, without loader and optimizer"),
    Case("slow_getitem", {"share": 0.5}, ("INPUT_BOUND",), "slow samples, no workers", sample=True, diary="loading"),
    Case("slow_getitem", {"share": 0.3, "batch": 24, "width": 320}, ("INPUT_BOUND",), "slow samples, no workers", diary="loading"),
    Case("heavy_transform", {"share": 0.5}, ("INPUT_BOUND",), "one worker for a heavy transform"),
    Case("heavy_transform", {"share": 0.35, "batch": 96}, ("INPUT_BOUND",), "one worker for a heavy transform"),
    Case("slow_collate", {"share": 0.45}, ("INPUT_BOUND",), "padding in Python", diary="collating"),
    Case("slow_collate", {"share": 0.6, "width": 224, "batch": 16}, ("INPUT_BOUND",), "padding in Python", diary="collating"),
    Case("slow_reads", {"share": 0.5}, ("INPUT_BOUND",), "slow storage", diary="reading"),
    Case("slow_reads", {"share": 0.7, "batch": 20}, ("INPUT_BOUND",), "slow storage", diary="reading"),
    Case("metrics", {"share": 0.4}, ("SYNC_BOUND",), "metrics at each step", sample=True, diary="metrics"),
    Case("metrics", {"share": 0.6, "width": 300, "steps": 200}, ("SYNC_BOUND",), "metrics at each step", diary="metrics"),
    Case("logs", {"share": 0.4}, LOGGING, "JSON at each step", diary="logging"),
    Case("logs", {"share": 0.55, "width": 256}, LOGGING, "JSON at each step", diary="logging"),
    Case("prints", {"share": 0.45}, LOGGING, "log records to a slow handler", diary="logging"),
    Case("prints", {"share": 0.3, "batch": 96}, LOGGING, "log records to a slow handler", diary="logging"),
    Case("collect", {"share": 0.25}, ("GC_BOUND",), "gc.collect() while training", sample=True, diary="collecting"),
    Case("collect", {"share": 0.4, "objects": 60000}, ("GC_BOUND",), "gc.collect() while training", diary="collecting"),
    Case("refresh", {"share": 0.3, "every": 25}, ("PERIODIC_STALL",), "ranking every N steps", sample=True, diary="mining"),
    Case("refresh", {"share": 0.45, "every": 9, "steps": 150}, ("PERIODIC_STALL",), "ranking every N steps", diary="mining"),
    Case("checkpoints", {"share": 0.3, "every": 20}, SAVING, "a checkpoint every N steps", sample=True, diary="saving"),
    Case("checkpoints", {"share": 0.45, "every": 8, "steps": 150}, SAVING, "a checkpoint every N steps", diary="saving"),
    Case("outliers", {"share": 0.3, "rare": 0.03}, ("STEP_OUTLIERS",), "rare long forward passes", diary="missing"),
    Case("outliers", {"share": 0.4, "rare": 0.06}, ("STEP_OUTLIERS",), "rare long forward passes", diary="missing"),
    Case("long_sequences", {"times": 30, "rare": 0.025}, ("STEP_OUTLIERS",), "rare long sequences", sample=True, diary="long", others="usual"),
    Case("long_sequences", {"times": 40, "rare": 0.04, "width": 128}, ("STEP_OUTLIERS",), "rare long sequences", diary="long", others="usual"),
    Case("indexing", {"seconds": 9.0}, ("INITIALIZATION_BOUND",), "indexing before training", gains=False),
    Case("indexing", {"seconds": 16.0, "steps": 250}, ("INITIALIZATION_BOUND",), "indexing before training", gains=False),
    Case("building", {"seconds": 10.0}, ("INITIALIZATION_BOUND",), "a model that is built slowly", gains=False),
    Case("building", {"seconds": 15.0, "width": 500}, ("INITIALIZATION_BOUND",), "a model that is built slowly", gains=False),
    Case("validation", {"batches": 80}, ("EVALUATION_BOUND",), "long evaluations", sample=True, diary="evaluating"),
    Case("validation", {"batches": 50, "every": 16}, ("EVALUATION_BOUND",), "long evaluations", diary="evaluating"),
    Case("second_order", {"share": 0.6}, ("OPTIMIZER_BOUND",), "an expensive optimizer", sample=True, diary="optimizing"),
    Case("second_order", {"share": 0.7, "width": 192, "steps": 160}, ("OPTIMIZER_BOUND",), "an expensive optimizer", diary="optimizing"),
    Case("losses", {"width": 512}, ("MEMORY_GROWTH",), "losses kept with their graphs", gains=False),
    Case("losses", {"width": 640, "batch": 192, "steps": 240}, ("MEMORY_GROWTH",), "losses kept with their graphs", gains=False),
    Case("cache", {"kilobytes": 2000}, ("MEMORY_GROWTH",), "a cache without a limit", gains=False),
    Case("cache", {"kilobytes": 4000, "steps": 240}, ("MEMORY_GROWTH",), "a cache without a limit", gains=False),
    Case("deep_narrow", {"depth": 60}, ("HOST_BOUND",), "many small layers, batch 2", line=None),
    Case("deep_narrow", {"depth": 25, "width": 24, "steps": 900}, ("HOST_BOUND",), "many small layers, batch 2", line=None),
    Case("tiny_steps", {"width": 16}, ("HOST_BOUND",), "tiny steps", line=None),
    Case("tiny_steps", {"width": 40, "batch": 4, "steps": 2500}, ("HOST_BOUND",), "tiny steps", line=None),
    Case("late_forward", {"share": 0.45, "slow": 1}, ("STRAGGLER",), "a rank late in its forward pass", sample=True, diary="late"),
    Case("late_forward", {"share": 0.6, "slow": 0}, ("STRAGGLER",), "a rank late in its forward pass", diary="late"),
    Case("late_data", {"share": 0.45, "slow": 0}, ("STRAGGLER",), "a rank late with its data", diary="late"),
    Case("late_data", {"share": 0.6, "slow": 1, "batch": 8}, ("STRAGGLER",), "a rank late with its data", diary="late"),
    Case("moving", {"share": 0.5}, ("MOVING_STRAGGLER",), "each step another rank late"),
    Case("moving", {"share": 0.65, "width": 200}, ("MOVING_STRAGGLER",), "each step another rank late"),
    Case("collect_apart", {"share": 0.3}, ("GC_BOUND", "GC_OUT_OF_PHASE"), "collections at different steps of two ranks"),
    Case("collect_apart", {"share": 0.4, "objects": 60000}, ("GC_BOUND", "GC_OUT_OF_PHASE"), "collections at different steps of two ranks"),
    Case("jax_healthy", {"width": 1024}, HEALTHY, "JAX: nothing"),
    Case("jax_healthy", {"width": 768, "batch": 256}, HEALTHY, "JAX: nothing"),
    Case("jax_shapes", {"shapes": 40}, ("RECOMPILATION",), "jax.jit, a new shape at most steps"),
    Case("jax_shapes", {"shapes": 25, "width": 400}, ("RECOMPILATION",), "jax.jit, a new shape at most steps"),
    Case("jax_loader", {"share": 0.5}, ("INPUT_BOUND",), "JAX: slow samples, no workers", diary="loading"),
    Case("jax_loader", {"share": 0.35, "batch": 96}, ("INPUT_BOUND",), "JAX: slow samples, no workers", diary="loading"),
    Case("jax_generator", {"share": 0.5}, ("INPUT_BOUND",), "JAX: a slow generator of the script's own", diary="loading"),
    Case("jax_generator", {"share": 0.4, "width": 700}, ("INPUT_BOUND",), "JAX: a slow generator of the script's own", diary="loading"),
    Case("jax_metrics", {"share": 0.5}, ("SYNC_BOUND",), "JAX: metrics on the host at each step", diary="metrics"),
    Case("jax_metrics", {"share": 0.35, "width": 700}, ("SYNC_BOUND",), "JAX: metrics on the host at each step", diary="metrics"),
    Case("jax_saving", {"share": 0.4}, SAVING, "JAX: a checkpoint every N steps", diary="saving"),
    Case("jax_saving", {"share": 0.3, "every": 10}, SAVING, "JAX: a checkpoint every N steps", diary="saving"),
    Case("jax_tiny", {"width": 8}, ("HOST_BOUND",), "JAX: tiny steps", line=None),
    Case("jax_tiny", {"width": 16, "batch": 2}, ("HOST_BOUND",), "JAX: tiny steps", line=None),
    Case("jax_eager", {"layers": 3}, ("HOST_BOUND",), "JAX: a step without jit", line=None),
    Case("jax_eager", {"layers": 8, "part": 1}, ("HOST_BOUND",), "JAX: only the gradients are compiled", line=None),
    Case("jax_compile", {"layers": 600}, ("INITIALIZATION_BOUND",), "JAX: compiling takes longer than training", line=None, gains=False),
    Case("jax_compile", {"layers": 500, "steps": 90}, ("INITIALIZATION_BOUND",), "JAX: compiling takes longer than training", line=None, gains=False),
    Case("tf_healthy", {"width": 1024}, HEALTHY, "TensorFlow: nothing"),
    Case("tf_healthy", {"width": 768, "batch": 384}, HEALTHY, "TensorFlow: nothing"),
    Case("tf_map", {"share": 0.5}, ("INPUT_BOUND",), "tf.data: a slow map function"),
    Case("tf_map", {"share": 0.35, "batch": 96}, ("INPUT_BOUND",), "tf.data: a slow map function"),
    Case("tf_generator", {"share": 0.5}, ("INPUT_BOUND",), "tf.data: a slow generator, an epoch as one function", gains=False),
    Case("tf_generator", {"share": 0.35, "width": 400}, ("INPUT_BOUND",), "tf.data: a slow generator, an epoch as one function", gains=False),
    Case("tf_retrace", {"width": 256}, ("RECOMPILATION",), "tf.function, another Python number at each step"),
    Case("tf_retrace", {"shapes": 40}, ("RECOMPILATION",), "tf.function, a new shape at most steps"),
    *(case for number, backend in enumerate(("TensorFlow", "JAX", "PyTorch")) for case in _keras(number, backend)),
    Case("recompile", {"shapes": 60}, ("RECOMPILATION",), "torch.compile, a new shape at most steps"),
    Case("recompile", {"shapes": 30, "steps": 160}, ("RECOMPILATION",), "torch.compile, a new shape at most steps"),
    Case("threads", {"factor": 8}, ("OVERSUBSCRIBED",), "more threads than cores", line=None, gains=False),
    Case("threads", {"factor": 4, "width": 384}, ("OVERSUBSCRIBED",), "more threads than cores", line=None, gains=False),
    Case("fading", {"times": 2.0}, ("FAIL_SLOW",), "slower from a step on", diary="throttled"),
    Case("fading", {"times": 1.6, "after": 0.6}, ("FAIL_SLOW",), "slower from a step on", diary="throttled"),
    Case("declared", {"share": 0.5}, ("USER_PHASE",), "a declared phase", sample=True, diary="declared"),
    Case("declared", {"share": 0.35, "width": 560}, ("USER_PHASE",), "a declared phase", diary="declared"),
    Case("by_hand", {"share": 0.4}, ("SYNC_BOUND",), "histograms, without loader and optimizer", diary="histograms"),
    Case("by_hand", {"share": 0.6, "width": 300, "steps": 200}, ("SYNC_BOUND",), "histograms, without loader and optimizer", diary="histograms"),
    Case("stuck", {"dies": 0.6}, ("HANG",), "a producer that died", gains=False),
    Case("stuck", {"dies": 0.3, "patience": 18.0}, ("HANG",), "a producer that died", gains=False),
    Case("two_causes", {"loading": 0.45, "norms": 0.25}, ("INPUT_BOUND",), "slow samples, and norms", also=("SYNC_BOUND",), line="loading", diary="loading", second="norms", sample=True),
    Case("two_causes", {"loading": 0.25, "norms": 0.45}, ("SYNC_BOUND",), "norms, and slow samples", also=("INPUT_BOUND",), line="norms", diary="norms", second="loading"),
    Case("save_and_log", {"saving": 0.4, "logging": 0.25}, SAVING, "checkpoints, and samples written out", also=LOGGING, line="saving", diary="saving", second="logging"),
    Case("save_and_log", {"saving": 0.2, "logging": 0.45}, LOGGING, "samples written out, and checkpoints", also=SAVING, line="logging", diary="logging", second="saving"),
    Case("optimizer_and_data", {"optimizing": 0.6, "loading": 0.25}, ("OPTIMIZER_BOUND",), "optimizer, and transform", also=("INPUT_BOUND",), line="optimizing", diary="optimizing", second="loading"),
    Case("optimizer_and_data", {"optimizing": 0.42, "loading": 0.42}, ("INPUT_BOUND",), "transform, and optimizer", also=("OPTIMIZER_BOUND",), line="loading", diary="loading", second="optimizing"),
    Case("evaluate_and_collect", {"collecting": 0.12, "batches": 150}, ("EVALUATION_BOUND",), "evaluation, and collections", also=("GC_BOUND",), line="evaluating", diary="evaluating", second="collecting"),
    Case("evaluate_and_collect", {"collecting": 0.35, "batches": 90}, ("EVALUATION_BOUND",), "collections, and evaluation", also=("GC_BOUND",), line="evaluating", diary="evaluating", second="collecting"),
)  # fmt: skip

GPU_CASES = (
    Case("gpu_transformer", {"width": 1024}, HEALTHY, "GPU: nothing, bf16"),
    Case("gpu_transformer", {"item": 1}, HEALTHY, "GPU: nothing that matters, `.item()` at each step"),
    Case("gpu_scaler", {"accumulate": 4}, HEALTHY, "GPU: nothing, fp16 with a GradScaler, four batches a step"),
    Case("gpu_float32", {"width": 4096}, ("TENSOR_CORES_UNUSED",), "GPU: products in single precision", line=None),
    Case("gpu_elementwise", {"depth": 12}, ("MEMORY_BANDWIDTH_BOUND",), "GPU: long elementwise chains", line=None),
    Case("gpu_copies", {"apart": 0}, ("TRANSFER_BOUND",), "GPU: copies from pageable memory"),
    Case("gpu_copies", {"apart": 1}, ("TRANSFER_BOUND",), "GPU: a copy for each image"),
    Case("gpu_items", {"width": 1024}, ("SYNC_BOUND",), "GPU: the norm of each gradient is read", gains=False),
    Case("gpu_tiny", {"depth": 40}, SMALL_STEPS, "GPU: many small layers", line=None, gains=False),
    Case("gpu_small_batch", {"batch": 2}, SMALL_STEPS, "GPU: two images a batch", line=None, gains=False),
    Case("gpu_plans", {"width": 768}, ("HOST_BOUND",), "GPU: attention planned anew for each length", line=None, gains=False),
    Case("gpu_pieces", {"memory": 0.039}, ("ALLOCATOR",), "GPU: memory in pieces", line=None, gains=False),
    Case("gpu_loader", {"share": 0.45}, ("INPUT_BOUND",), "GPU: slow samples, no workers", diary="loading"),
    Case("gpu_optimizer", {"width": 256}, ("OPTIMIZER_BOUND", *SMALL_STEPS), "GPU: an optimizer that launches one by one", line=None, gains=False),
    Case("gpu_recompile", {"shapes": 7}, ("RECOMPILATION",), "GPU: torch.compile, new lengths", line=None),
    Case("gpu_jax", {"width": 8192}, HEALTHY, "GPU: nothing, JAX"),
)  # fmt: skip
