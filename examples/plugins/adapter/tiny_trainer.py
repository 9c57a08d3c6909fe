"""A training framework with one function, which sm-profiler has never heard of."""


class Trainer:
    def __init__(self, update):
        self.update = update

    def fit(self, batches):
        for batch in batches:
            self.train_step(batch)

    def train_step(self, batch):
        self.update(batch)
