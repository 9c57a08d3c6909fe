"""Discovery of models, changes of the configuration, and windows that end; torch and its warnings stay as they were."""

import functools
import json
import warnings
from itertools import islice

import pytest
import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.eval_frame import OptimizedModule

from sm_profiler.config import load_profile
from sm_profiler.hook import Hook, entry
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.model_inputs import ModelInputs
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.settings import ConfigText

PATCHED = [
    (torch.optim.Optimizer, "__init__"),
    (torch.nn.Module, "compile"),
    (OptimizedModule, "__init__"),
]


def test_uninstalling_restores_torch(tmp_path, monkeypatch):
    before = [getattr(owner, name) for owner, name in PATCHED], list(callback_handler.start_callbacks)
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    session = entry.install().session
    assert all(getattr(owner, name) is not was for (owner, name), was in zip(PATCHED, before[0], strict=True))
    model = torch.nn.Linear(2, 2)
    model.compile(backend="eager")
    ours = model._compiled_call_impl
    model(torch.ones(1, 2))
    assert session.guard.failures == {}
    entry.uninstall()
    assert ([getattr(owner, name) for owner, name in PATCHED], list(callback_handler.start_callbacks)) == before
    assert "clear" not in vars(callback_handler)
    assert model._compiled_call_impl is not ours
    assert not model._forward_hooks
    assert model(torch.ones(1, 2)).shape == (1, 2)


def test_a_reset_of_dynamo_keeps_the_callback(session):
    ours = list(callback_handler.start_callbacks)
    assert ours
    torch._dynamo.reset()
    assert callback_handler.start_callbacks == ours


def test_a_warning_that_was_shown_once_is_not_shown_again(session):
    """Changing the filters through the warnings module resets which warnings were shown already."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")

        def warn() -> None:
            warnings.warn("mine", UserWarning, stacklevel=1)

        warn()
        for _ in range(3):  # discovery starts and ends each time
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            warn()
    assert [str(one.message) for one in shown] == ["mine"]
    assert session.guard.failures == {}


class Symbol(torch.Tensor):
    """An input without values, as KerasTensor."""


@pytest.mark.parametrize("how", ["symbols", "a scope"])
def test_layers_that_run_while_their_model_is_constructed_have_no_hooks(session, how):
    """On Keras's torch backend, each layer of a model had hooks, which ran at each of its calls."""
    forwards, building = session.adapter.forwards, True
    forwards.symbolic, forwards.constructing = Symbol, lambda: building and how == "a scope"
    layers = [torch.nn.Linear(2, 2) for _ in range(3)]
    shape = torch.ones(1, 2) if how == "a scope" else torch.ones(1, 2).as_subclass(Symbol)
    for layer in layers:
        layer(shape)
    building = False

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.ParameterList(layers[0].parameters())  # the layers themselves are out of its sight

        def forward(self, x):
            for layer in layers:
                x = layer(x)
            return x

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert model._forward_hooks
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    assert session.guard.failures == {}


def test_what_a_backward_runs_again_has_no_hooks(session):
    from torch.utils.checkpoint import checkpoint

    inner = torch.nn.Linear(2, 2)

    class Model(torch.nn.Linear):
        def forward(self, x):
            return checkpoint(inner, super().forward(x), use_reentrant=False)

    model = Model(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *inner.parameters()], 0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert model._forward_hooks
    assert not inner._forward_hooks
    assert session.guard.failures == {}


def test_a_second_training_is_recorded_from_its_first_forward(session):
    records = []
    session.tracker.append = records.append
    for _ in range(2):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert sum(record[0] == "Forward" for record in records) == 6


def test_collectors_are_skipped_at_steps_that_they_do_not_need(session):
    notified = []
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def steps(count: int) -> int:
        notified.clear()
        for _ in range(count):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return len(notified)

    class Notified(Collector):
        def __init__(self, *, may_skip: bool) -> None:
            self.may_skip = may_skip

        def step_begins(self, _step, mode) -> bool:
            notified.append(mode)
            return self.may_skip

    steps(5)
    session.add(Notified(may_skip=True))
    assert steps(5) == 1
    assert steps(5) == 0
    eager = Notified(may_skip=False)
    session.add(eager)
    assert steps(5) == 10  # both are notified as long as one needs every step
    session.discard(eager)
    assert steps(5) == 1
    Hook(session).set_mode(ModeKeys.PREDICT)
    assert steps(5) > 0  # discovery runs, as there may be other models in this mode
    assert steps(5) == 0
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)  # perhaps that of another model
    assert steps(5) > 0
    assert session.tracker.global_step == 39
    assert session.guard.failures == {}


def test_a_changed_configuration_takes_effect_while_collectors_are_skipped(session, tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    for _ in range(4):
        step()
    assert session.tracker.settled is ModeKeys.TRAIN
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({"ProfilingParameters": {"DetailedProfilingConfig": json.dumps({"StartStep": 5})}}))
    session._source = ConfigText("", path, 0)
    session._reload_profile()
    step()
    assert session.schedule.windows["detailed"].range.start_step == 5
    assert not session.schedule.windows["detailed"].active
    step()
    assert session.schedule.windows["detailed"].active
    step()
    assert session.schedule.windows["detailed"].ended
    step()
    assert session.tracker.settled is ModeKeys.TRAIN


class Turns(Collector):
    """A collector that records when it is turned on and off."""

    def __init__(self, tracker) -> None:
        self.tracker, self.turned = tracker, []

    def enter(self, _step: int) -> None:
        self.turned.append(("on", self.tracker.global_step))

    def leave(self, _step: int) -> None:
        self.turned.append(("off", self.tracker.global_step))


@pytest.mark.parametrize(
    ("changed", "turned"),
    [
        ({}, [("on", 2), ("off", 4)]),
        ({"StartStep": 6, "NumSteps": 1}, [("on", 2), ("off", 4), ("on", 6), ("off", 7)]),
        ({"StartStep": 2, "NumSteps": 100}, [("on", 2)]),
        ({"StartStep": 3, "NumSteps": 3}, [("on", 2), ("off", 4), ("on", 4), ("off", 6)]),
        ("shed", [("on", 2), ("off", 4)]),
        ("failed", [("on", 2), ("off", 4)]),
    ],
)
def test_an_open_window_ends_once_with_its_range(session, changed, turned):
    def take(ranges: dict) -> None:
        given = {"DetailedProfilingConfig": json.dumps(ranges)} if ranges else {}
        session.change_profile(load_profile(json.dumps({"ProfilingParameters": given})))

    collector = session.schedule.collectors["detailed"] = Turns(session.tracker)
    take({"StartStep": 2, "NumSteps": 100})
    for step in range(10):
        if step == 4 and changed == "shed":
            session.controller._reduce(2)
        elif step == 4 and changed == "failed":
            session.guard.failed("detailed", ValueError())
        elif step == 4:
            take(changed)
        session.tracker.begin_step(step + 1, gradients=True)
    assert collector.turned == turned


def test_a_dataloader_window_is_shed_while_collectors_are_skipped(session):
    ranges = json.dumps({"StartStep": 0, "NumSteps": 1000})
    session.change_profile(load_profile(json.dumps({"ProfilingParameters": {"DataloaderProfilingConfig": ranges}})))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(20, 2))))

    def steps(count: int) -> None:
        for (inputs,) in islice(batches, count):
            model(inputs).sum().backward()
            optimizer.step()

    steps(5)
    window = session.schedule.windows["dataloader"]
    assert window.active
    assert session.tracker.settled is ModeKeys.TRAIN
    session.controller._reduce(2)
    steps(2)
    assert window.ended
    assert session.notes["dataloader"].startswith("shed")


def test_unusual_modules_do_no_harm_before_a_compilation(session):
    class Unfinished(torch.nn.Module):
        def __init__(self) -> None:
            """Leave out the base class's: the module has no tables."""

    class Strange(torch.nn.Linear):
        def parameters(self, **_):
            raise RuntimeError("not yet")

    class Mine(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).relu()

    kept = [Unfinished(), Strange(2, 2), torch.nn.ReLU()]
    other, model = Mine(2, 2), Mine(2, 2)
    model.compile(backend="eager")
    model(torch.ones(1, 2))
    assert session.guard.failures == {}
    assert other._forward_hooks  # may be evaluated as it is
    assert kept[1]._forward_hooks  # without its own parameters()
    assert not kept[2]._forward_hooks


def test_a_dataloader_window_may_be_removed_while_its_workers_run(session):
    """Recording the end of the workers raised KeyError."""

    def change(**windows: str) -> None:
        session.change_profile(load_profile(json.dumps({"ProfilingParameters": windows})))
        session.wake()

    records = []
    session.tracker.append = records.append
    model = torch.nn.Linear(2, 2)
    data = torch.utils.data.TensorDataset(torch.ones(20, 2))
    change(DataloaderProfilingConfig=json.dumps({"StartStep": 0, "NumSteps": 1000, "MetricsRegex": ".*Worker.*"}))
    model(torch.ones(1, 2)).sum().backward()
    for number, (inputs,) in enumerate(torch.utils.data.DataLoader(data, num_workers=1)):
        if number == 10:
            change()
        model(inputs).sum().backward()
    names = [record[0] for record in records]
    assert 8 <= names.count("DataLoaderWorkerFetch") <= 12
    assert names.count("DataLoaderWorker") == 1
    assert "DataLoaderIter" not in names
    assert session.guard.failures == {}


def test_an_expensive_metrics_regex_opens_no_window(session):
    """A backtracking engine needs hours for this pattern, on the training thread, so it is refused."""
    ranges = json.dumps({"StartStep": 0, "NumSteps": 1000, "MetricsRegex": "([a-z_.:]+)+!"})
    session.change_profile(load_profile(json.dumps({"ProfilingParameters": {"DataloaderProfilingConfig": ranges}})))
    records = []
    session.tracker.append = records.append
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    assert "dataloader" not in session.schedule.windows
    for (inputs,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(9, 2))):
        model(inputs).sum().backward()
    assert not any(record[0].startswith("DataLoaderIter") for record in records)
    assert session.guard.failures == {}


def test_the_samples_of_a_step_come_from_the_models_inputs(session):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(20):
        for _ in range(2):  # batches that add up to one step
            model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.randn(64, 4))
    assert session.describe()["samples_per_step"] == 16
    assert session.describe()["calls_per_step"] == 2


def test_the_sizes_of_inputs_are_kept(session):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(20):
        for rows in (8 + step, 3):
            model(torch.randn(rows, 4)).sum().backward()
        optimizer.step()
    sizes = session.describe()["input_sizes"]
    assert sizes[0] == (0, 32)
    assert {elements - 4 * step for step, elements in sizes} == {32}


def test_sizes_are_spread_over_the_course_of_the_training():
    inputs = ModelInputs()
    for step in range(1000):
        inputs.see((step + 1, 2), step)
    assert [step for step, _ in inputs.sizes] == list(range(0, 1000, 16))
    assert inputs.sizes[-1] == (992, 1986)


def test_padding_is_counted_in_the_masks_of_a_loader(session):
    rows = [{"attention_mask": torch.arange(8) < length, "x": torch.randn(4)} for length in (2, 6, 4, 4)]
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in torch.utils.data.DataLoader(rows, batch_size=2):
        model(batch["x"]).sum().backward()
        optimizer.step()
    assert (session.describe()["padding"], session.describe()["padding_of_all"]) == (0.5, 0.375)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_type_of_the_models_parameters_is_recorded(session, dtype):
    torch.nn.Linear(4, 2, dtype=dtype)(torch.ones(1, 4, dtype=dtype)).sum().backward()
    assert session.describe()["dtype"] == str(dtype)


class Collate:
    def __call__(self, rows):
        return torch.utils.data.default_collate(rows)


def put_together(_, rows):
    return torch.utils.data.default_collate(rows)


@pytest.mark.parametrize(
    ("collate", "code"),
    [
        (None, None),
        (torch.utils.data.default_collate, None),
        (Collate(), Collate.__call__.__code__),
        (functools.partial(put_together, 8), put_together.__code__),
    ],
)
def test_the_scripts_function_that_makes_batches_is_recorded(session, collate, code):
    for _ in torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2, collate_fn=collate):
        pass
    assert session.describe()["collate"] == (
        code and {"file": code.co_filename, "line": code.co_firstlineno, "function": code.co_name}
    )


def test_a_batch_without_sequences_has_no_padding(session):
    images, table = torch.zeros(4, 1, 28, 28), torch.randint(0, 3, (64, 12))
    counts = torch.zeros(64, 50, dtype=torch.long)  # of words: few of many, and most rows end with none
    counts[torch.arange(64), torch.arange(64) % 40] = counts[:, 0] = 1
    constant = torch.cat([torch.randint(1, 9, (64, 4)), torch.zeros(64, 2, dtype=torch.long)], 1)
    ends = torch.cat([torch.randint(1, 9, (64, 4)), torch.zeros(64, 1, dtype=torch.long)], 1)
    batches = [[1], {"attention_mask": None}, {"attention_mask": torch.ones(3)}, {"x": 1}, "text", None]
    for batch in (*batches, *((one, torch.arange(4)) for one in (images, table, counts, constant, ends))):
        session.padding.see(batch)
    assert session.describe()["padding"] is None


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_counted_by_the_token_that_fills_a_batch(session, left):
    """A script that pads by itself was healthy although three quarters of its tokens were padding."""
    lengths = torch.tensor([2, 6, 4, 4, 3, 5])
    tokens = torch.randint(1, 50, (6, 8)) * (torch.arange(8) < lengths[:, None])
    session.padding.see((tokens.flip(1) if left else tokens, torch.arange(6)))
    found = session.describe()
    assert (found["padding"], found["padding_of_all"], found["padding_inferred"]) == (0.5, 0.25, True)


LENGTHS = torch.tensor([2, 6, 4, 4, 3, 5])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_padding_is_counted_by_a_mask_of_any_name(session, left, padded):
    """Series that were padded by hand, with a mask for the model, were a healthy training."""
    mask = (torch.arange(8) < LENGTHS[:, None]) != padded
    session.padding.see((torch.randn(6, 8, 3), mask.flip(1) if left else mask, torch.arange(6)))
    found = session.describe()
    assert (found["padding"], found["padding_of_all"], found["padding_inferred"]) == (0.5, 0.25, None)


@pytest.mark.parametrize("features", [(), (3,)])
def test_padding_of_series_is_counted_by_the_zeros_that_fill_them(session, features):
    for longest in (8, 9, 10):
        filled = torch.arange(longest) < torch.cat([LENGTHS, torch.tensor([longest])])[:, None]
        series = torch.rand(7, longest, *features) + 0.1
        session.padding.see({"series": series * (filled[..., None] if features else filled)})
    found = session.describe()
    assert found["padding"] == pytest.approx(1 - 99 / 189, abs=1e-4)
    assert (found["padding_of_all"], found["padding_inferred"]) == (0.0, True)


def test_pictures_with_a_black_border_have_no_padding(session):
    for _ in range(10):
        height = torch.randint(10, 28, (16,))
        session.padding.see(
            (torch.rand(16, 28, 28) * (torch.arange(28) < height[:, None])[..., None], torch.arange(16))
        )
    assert session.describe()["padding"] is None


def test_a_model_without_a_loader_shows_its_padding(session):
    model = torch.nn.EmbeddingBag(50, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.randint(1, 50, (6, 8)) * (torch.arange(8) < torch.tensor([2, 6, 4, 4, 3, 5])[:, None])
    for _ in range(3):
        model(tokens).sum().backward()
        optimizer.step()
    assert session.describe()["padding"] == 0.5


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("adopted", [False, True])
def test_scripted_models_are_recorded(session, adopted):
    records = []
    session.tracker.append = records.append
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    wrapper = torch.nn.Module()  # as DistributedDataParallel
    wrapper.module = model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if adopted:  # with the first compilation, all models that exist are, and those inside wrappers
        session.adapter.forwards.adopt()
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    session.tracker.end_step()
    assert session.guard.failures == {}
    assert [record[0] for record in records].count("Forward") == 5


def test_a_hook_that_is_switched_off_leaves_no_handlers(session):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert model._forward_pre_hooks
    session.fail(ValueError("an internal error"))
    assert session.quiet
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    session.adapter.forwards.discover()
    assert not torch.nn.modules.module._global_forward_pre_hooks
    model(torch.ones(1, 2)).sum().backward()
    assert session.guard.count == 1
