"""A training framework with one function, for which sm-profiler has no adapter."""


class Trainer:
    def __init__(self, update):
        self.update = update

    def fit(self, batches):
        for batch in batches:
            self.train_step(batch)

    def train_step(self, batch):
        self.update(batch)
