"""An executor for tests: tasks run in this process, in an order that only chance decides."""

import random
import threading
from concurrent.futures import Executor, Future


class ShuffledExecutor(Executor):
    """Runs tasks in an order of its own, each of them `times` times; keeps what each was given."""

    _max_workers = 3

    def __init__(self, seed=1, times=1):
        self.waiting, self.lock, self.seed, self.times = [], threading.Lock(), seed, times
        self.given = []

    def submit(self, fn, /, *args):
        future = Future()
        with self.lock:
            self.waiting.append((future, fn, args))
            if len(self.waiting) == 1:
                threading.Timer(0.01, self.run).start()
        return future

    def run(self):
        with self.lock:
            tasks, self.waiting = self.waiting, []
        random.Random(self.seed).shuffle(tasks)  # an order, not a secret
        for future, fn, args in tasks:
            if future.set_running_or_notify_cancel():
                self.given.append(args)
                try:
                    future.set_result([fn(*args) for _ in range(self.times)][-1])
                except Exception as error:
                    future.set_exception(error)
