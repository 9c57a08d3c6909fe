"""A rule: the machine must not run out of memory."""


class MemoryMargin:
    """Fires if more of the memory is used than a limit, in percent, in more than a tenth of the samples."""

    def __init__(self, limit="90"):  # parameters arrive as texts
        self.limit = float(limit)
        self.samples = self.above = 0

    def update(self, window):
        memory = window.new_system.name.mask("MemoryUsedPercent")
        values = window.new_system.value[memory]  # a numpy array
        self.samples += len(values)
        self.above += int((values > self.limit).sum())

    def merge(self, other):
        self.samples += other.samples
        self.above += other.above

    def result(self):
        fires = self.above > self.samples / 10
        details = {"limit": self.limit, "share_above": self.above / self.samples if self.samples else 0.0}
        return {
            "RuleTriggered": int(fires),
            "Violations": self.above,
            "Datapoints": self.samples,
            "Details": details,
        }
