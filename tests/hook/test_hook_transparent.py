"""The wrapped calls keep their signatures, results, exceptions and tracebacks; uninstalling restores torch."""

import inspect
import io
import json
import traceback
from copy import deepcopy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

from sm_profiler.hook import entry


def test_signatures_and_names(session):
    backward, fetch = torch.autograd.backward, dataloader._BaseDataLoaderIter.__next__
    assert backward is not backward.__wrapped__
    assert inspect.signature(backward) == inspect.signature(backward.__wrapped__)
    assert (backward.__name__, backward.__module__) == ("backward", "torch.autograd")
    assert inspect.signature(fetch) == inspect.signature(fetch.__wrapped__)


def test_exceptions_keep_their_traceback(session):
    class Records(TensorDataset):
        def __getitem__(self, index):
            raise LookupError("record 7")

    with pytest.raises(LookupError, match="record 7") as caught:
        next(iter(DataLoader(Records(torch.ones(4)))))
    assert "__getitem__" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert session.tracker.in_fetch == 0
    leaf = torch.ones(1)
    with pytest.raises(RuntimeError, match="does not require grad"):
        leaf.sum().backward()
    assert session.tracker.in_backward == 0
    assert session.guard.failures == {}


def test_ctrl_c_in_a_forward_does_not_hide_the_forwards_after_it(session):
    class Interrupted(torch.nn.Linear):
        stop = True

        def forward(self, x):
            if self.stop:
                raise KeyboardInterrupt
            return super().forward(x)

    model = Interrupted(2, 2)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2))
    model.stop = False
    seen = []
    session.tracker.append = seen.append
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert [record[0] for record in seen].count("Forward") == 3


def test_a_users_own_hooks_are_kept(session):
    calls = []
    model = torch.nn.Linear(2, 2)
    handle = model.register_forward_hook(lambda *_: calls.append("mine"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert len(model._forward_hooks) == 2  # the user's and ours
    handle.remove()
    later = model.register_forward_pre_hook(lambda *_: calls.append("later"))
    model(torch.ones(2))
    later.remove()
    model(torch.ones(2))
    assert calls == ["mine", "mine", "later"]
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"sm_profiler" not in buffer.getvalue()
    buffer.seek(0)
    copy = torch.load(buffer, weights_only=False)
    assert torch.equal(copy(torch.ones(2)), model(torch.ones(2)))
    assert torch.equal(deepcopy(model)(torch.ones(2)), model(torch.ones(2)))


def test_uninstalling_restores_what_was_wrapped(tmp_path, monkeypatch):
    before = (torch.autograd.backward, dict(vars(dataloader._BaseDataLoaderIter)))
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
    entry.install()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    assert model._forward_hooks
    entry.uninstall()
    assert (torch.autograd.backward, dict(vars(dataloader._BaseDataLoaderIter))) == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks
    assert torch.optim.Optimizer.__init__ is not None


def test_an_error_in_the_forward_hooks_costs_the_forwards_only(session):
    def fails(*_, **__):
        raise ValueError("of the hook")

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session.tracker.forward_begins = fails
    for _ in range(4):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert session.guard.failures == {"models": "ValueError: of the hook"}
    assert not session.quiet
    assert session.tracker.global_step >= 2
    assert not model._forward_hooks
