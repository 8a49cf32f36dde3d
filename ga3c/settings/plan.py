"""The plan of each schedule: the steps between two updates, and the agents that each update trains on.

`service/rounds.py` is the state machine of the schedules in rounds. A new schedule also needs its name among the
choices of `schedule` in `schema.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from ga3c.settings.schema import Settings


class Plan(NamedTuple):
    """The numbers of a schedule, in steps of each agent.

    steps: between two updates. groups: update u trains on the agents of group u % groups. uses: updates that train on
    each step. turns: parts of the agents that get their predictions in turn. Agent a is in group a % groups and turn
    a % turns. in_rounds: agents wait for each other; if not (queues), no agent waits and an update takes any rollouts.
    """

    steps: int
    groups: int = 1
    uses: int = 1
    turns: int = 1
    in_rounds: bool = True

    @property
    def segment(self) -> int:
        """Steps of an agent from one update of its group to the next. A slot holds that many."""
        return self.steps * self.groups

    def rollouts(self, agents: int) -> int:
        """Returns the most rollouts in an update: one of each agent of the largest group."""
        return -(-agents // self.groups)

    def first(self, agent: int, generation: int = 1) -> int:
        """Returns the steps in the first rollout of an agent: until the first update of its group.

        An agent that replaces another one (generation 2, 3, ...) has a whole segment.
        """
        return self.steps * (agent % self.groups + 1) if generation == 1 else self.segment

    def begins(self, agent: int, generation: int) -> int:
        """Returns the remainder r: an agent may join at an update u only if u % groups == r.

        Its first rollout then ends at the next update of its group.
        """
        return (agent + 1 - self.first(agent, generation) // self.steps) % self.groups


def requests_twice(settings: Settings) -> bool:
    """Says whether an update comes between a full rollout and the next step, so that the agent asks twice.

    The value after the rollout then comes from the weights before the update, the next action from those after it.
    """
    return plan(settings).in_rounds or settings.workers_learn


def plan(settings: Settings) -> Plan:
    """Returns the plan of the schedule named in the settings."""
    schedule, length = settings.batching.schedule, settings.algorithm.rollout_length
    if schedule == "queues":
        return Plan(length, in_rounds=False)
    if schedule != "multi-batch":
        return Plan(length, turns={"synchronous": 1, "alternating": 2}[schedule])
    groups = settings.batching.update_groups
    steps = settings.batching.steps_per_update or max(1, length // groups)
    return Plan(steps, groups, length // (steps * groups))


def rollouts_per_batch(settings: Settings) -> int:
    """Returns rollouts per batch: the fewest with `training_batch_min` steps; in rounds, one per agent of a group."""
    schedule = plan(settings)
    if settings.workers_learn:
        return 1
    if schedule.in_rounds:
        return schedule.rollouts(settings.agent_count)
    steps = settings.algorithm.rollout_length * settings.agents.envs_per_agent
    return -(-settings.batching.training_batch_min // steps)
