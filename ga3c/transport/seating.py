"""Which agents live in which process.

Agents that take turns in one process find each other's code and tables in the processor's caches; agents in processes
of their own each find them cold, once a step. What is lost: an environment that waits for something keeps the others of
its process waiting, and if one takes its process down, they all begin anew.
"""

from __future__ import annotations

from typing import NamedTuple

from ga3c.envs.factory import atari_id
from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import Settings

ENVIRONMENTS = 16  # of Atari in a process
PER_CORE = 2      # processes that get an agent each before any gets its second


class Seating(NamedTuple):
    """`per_process` agents share a process, of `capacity` agents in all.

    The first `spread` agents are in as many processes, so are the next, and so on until those are full; then come the
    next `spread` processes. So agents few in number do not share a core while another is idle.
    """

    capacity: int
    per_process: int = 1
    spread: int = 1

    @property
    def processes(self) -> int:
        """How many there may be."""
        full, rest = divmod(self.capacity, self.spread * self.per_process)
        return full * self.spread + min(rest, self.spread)

    def process_of(self, agent: int) -> int:
        """Where it lives."""
        return agent // (self.spread * self.per_process) * self.spread + agent % self.spread

    def row(self, agent: int) -> int:
        """Those of a lower row are to play first, as they have more of a process for themselves; 0 if nobody shares."""
        return agent // self.spread if self.per_process > 1 else 0

    def slots_of(self, agent: int, each: int) -> range:
        """The slots of an agent, where all have `each` of them; the n-th ones of a process lie side by side."""
        block, number = divmod(self.process_of(agent), self.spread)
        full = block * self.spread * self.per_process
        share, more = divmod(min(self.capacity - full, self.spread * self.per_process), self.spread)
        fellows = self.agents_of(self.process_of(agent))
        first = each * (full + number * share + min(number, more)) + fellows.index(agent)
        return range(first, first + each * len(fellows), len(fellows))

    def agents_of(self, process: int) -> range:
        """Who lives there."""
        block, number = divmod(process, self.spread)
        size = self.spread * self.per_process
        return range(block * size + number, min(self.capacity, (block + 1) * size), self.spread)


def seating(settings: Settings) -> Seating:
    """As set, or with as many Atari agents in a process as have `ENVIRONMENTS` environments; any others may wait for
    something and have a process each.
    """
    usual = max(1, ENVIRONMENTS // settings.agents.envs_per_agent) if atari_id(settings.env.game) else 1
    return Seating(settings.agent_capacity, 1, PER_CORE * usable_cores())
