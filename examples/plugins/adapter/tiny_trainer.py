"""A training framework with two functions, for which sm-profiler has no adapter."""


class Trainer:
    def __init__(self, update, store=None):
        self.update = update
        self.store = store

    def fit(self, batches, save_every=None):
        for number, batch in enumerate(batches, 1):
            self.train_step(batch)
            if save_every and number % save_every == 0:
                self.save(number)

    def train_step(self, batch):
        self.update(batch)

    def save(self, number):
        if self.store is not None:
            self.store(number)
