"""Bare steps: plain steps whose phases are not recorded, with nothing in PyTorch's way but three short calls.

Most code of the hook is out of the processor's caches each time that it runs, once a step: what counts is how much code
there is.  In bare steps models have no hooks: PyTorch asks before each call of a module whether it has any, which shows
where a step begins.  The hooks of the backward and of the optimizer are exchanged for shorter ones.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.pytorch.forward import PrivateHooks, compiling_check
from sm_profiler.hook.steps import RUNS

if TYPE_CHECKING:
    from sm_profiler.hook.pytorch.forward import Forwards
    from sm_profiler.hook.session import Session


class BareSteps:
    """Takes out what bare steps do without, and puts it back.

    `StepTracker.bare` may become false at any time, on any thread; what was taken out comes back with the training
    thread's next forward, fetch or update.

    Attributes:
        after: what an optimizer calls after its step.
        backward: wrapper of the backward.
    """

    def __init__(self, session: Session, torch: Any, forwards: Forwards) -> None:
        self._tracker = session.tracker
        self._torch = torch
        self._forwards = forwards
        self._on = False
        self.after: Any = None
        self.backward: Any = None
        self._usual_backward: Any = None
        self._hooks: list[tuple[dict[int, Any], int, Any, Any]] = []  # table, key, usual hook, the one of bare steps
        self._table = self._make_table(session)
        forwards.note_bare = self._note
        forwards.at_unmute = self.end

    def installed(self, handles: Any, backward: Any) -> None:
        """Note the usual hooks of optimizers, before and after, and the usual wrapper of the backward."""
        self._usual_backward = backward
        tables = [handle.hooks_dict_ref() for handle in handles]
        tracker = self._tracker

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            tracker.optimizer = id(optimizer)

        bare = (before, self.after)
        self._hooks = [
            (table, handle.id, table[handle.id], hook)
            for table, handle, hook in zip(tables, handles, bare, strict=True)
        ]

    def begin(self, before: int) -> None:
        """Begin with the next step, if all that is left to note are plain steps.

        Args:
            before: a step that is not bare, nor those after it.
        """
        tracker, forwards = self._tracker, self._forwards
        if forwards.sees_compilations and not forwards.relayed and forwards.may_hide():
            tracker.begin_bare(before)
        if not tracker.bare:
            return
        forwards.hide(self._table)
        autograd = self._torch.autograd
        if autograd.backward is self._usual_backward:
            autograd.backward = self.backward
        for table, key, _, bare in self._hooks:  # values only: another thread may be iterating
            if key in table:
                table[key] = bare
        self._on = True

    def end(self) -> None:
        """Put back what was taken out."""
        self._tracker.end_bare()
        if not self._on:
            return
        self._on = False
        autograd = self._torch.autograd
        if autograd.backward is self.backward:
            autograd.backward = self._usual_backward
        for table, key, usual, bare in self._hooks:
            if table.get(key) is bare:
                table[key] = usual
        if self._forwards.muted:
            self._forwards.unmute()

    def _note(self) -> bool:
        """Note a forward of a bare step; return False if the usual hooks have to."""
        tracker, forwards = self._tracker, self._forwards
        if threading.get_ident() != forwards.thread:
            noted = forwards.trains()
        elif tracker.in_fetch or tracker.in_backward:
            noted = True
        else:
            noted = self._torch.is_grad_enabled() and tracker.bare_forward()
        if not noted:
            self.end()
        return noted

    def _make_table(self, session: Session) -> type[PrivateHooks]:
        tracker, forwards, note = session.tracker, self._forwards, self._note
        is_exporting, frame_of = compiling_check(self._torch, exporting=True), sys._getframe
        call, get_ident = self._torch.nn.Module._call_impl.__code__, threading.get_ident
        gradients = self._torch.is_grad_enabled

        def asked(table: PrivateHooks) -> bool:
            try:
                if tracker.bare:
                    if tracker.stage == RUNS and get_ident() == forwards.thread and gradients():
                        return len(table) > 0  # one of several forwards
                    if frame_of(1).f_code is call and not is_exporting():
                        note()
                elif get_ident() == forwards.thread:  # PyTorch reads the tables again after this answer
                    self.end()
            except Exception as error:  # fail open
                session.fail(error)
            return len(table) > 0

        return type("HiddenHooks", (PrivateHooks,), {"__bool__": asked})
