"""How many loader workers a process may have, and how many it would need."""

from __future__ import annotations

import math
from collections import Counter

import attrs

from sm_profiler.report import policy
from sm_profiler.report.judges.judge_context import Case, duration


@attrs.frozen
class Workers:
    """Workers of one training process.

    Attributes:
        now: as the loader says; -1 where it did not.
        room: cores of a node for each of its processes, of the node that has least; 0 where the cores are not known.
        needed: so many would bring a batch in the time that the rest of the step takes, as today's deliver.
        wait, rest: seconds of an average step in which it waits, and of the rest.
        idle: loading takes little of a processor: it waits itself, and more workers than cores may do so at once.
    """

    now: int
    room: int
    needed: int
    wait: float
    rest: float
    idle: bool = False

    @property
    def suggested(self) -> int:
        """What to try: what is needed and some more, a core each where they compute."""
        wanted = max(policy.WORKERS.value, self.needed)
        limit = self.room or max(2 * policy.WORKERS.value, self.now + 1)
        usual = max(min(wanted, limit), 1)
        return int(max(usual, min(self.needed, policy.IDLE_WORKERS.value)) if self.idle else usual)

    @property
    def enough_room(self) -> bool:
        """The cores suffice for the workers that are needed."""
        return not self.room or self.needed <= self.room

    def advice(self) -> str:
        """A sentence about the need; where cores do not suffice, whether that matters."""
        hide = f"to hide {duration(self.wait)} of waiting behind {duration(self.rest)} of step"
        if self.enough_room:
            return f"About {self.needed} {'is' if self.needed == 1 else 'are'} needed {hide}."
        cores = f"{self.room} core{'s' * (self.room != 1)}"
        if self.idle:
            return (
                f"About {self.needed:,} are needed {hide}; that there are only {cores} is no matter, since loading takes little of "
                "them: it waits, for storage or the network. Fewer and larger reads, and data that are closer, help as well."
            )
        return (
            f"More workers alone cannot suffice: about {self.needed:,} would be needed {hide}, and there are {cores} for each "
            "training process. Preprocessing itself must get cheaper as well: cache its result, or use a faster decoder."
        )


def workers_of(case: Case) -> Workers:
    """Count for the judged ranks: the load of a batch is what today's workers take for one."""
    facts = case.facts
    ranks = Counter(rank.node for rank in facts.ranks)
    room = [max(cores // max(ranks[node], 1), 1) for node, cores in facts.system.cores.items() if cores]
    wait = case.mean(lambda rank: rank.usual("wait", without_stalls=False))
    turn = case.mean(lambda rank: rank.usual("length", without_stalls=False))
    now, rest = facts.loader.num_workers, max(turn - wait, 1e-6)
    load = now * turn if now > 0 else wait  # the process itself loads only while it waits
    needed = max(math.ceil(load / rest), now + 1, 1)
    return Workers(now, min(room, default=0), needed, wait, rest, _mostly_waits(case, now, wait / max(turn, 1e-9)))


def _mostly_waits(case: Case, workers: int, wait: float) -> bool:
    """Whether loading keeps the processors less busy than if it computed; `wait`: share of a step."""
    facts = case.facts
    cpu, cores = facts.mean_of("cpu"), sum(facts.system.cores.values())
    if cpu is None or not cores or not facts.ranks:
        return False
    busy = (
        cpu / 100 * cores / len(facts.ranks)
    )  # cores a training process, of which it takes one while it does not wait
    return busy - (1 - wait) < policy.LOADER_IDLE.value * (workers if workers > 0 else wait)
