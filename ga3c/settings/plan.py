"""What schedules are made of: how many steps stand between two updates, and who is trained on in which.

`service/rounds.py` is the state machine of those in rounds. A new one needs its name among the choices of `schedule` in
`schema.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from ga3c.settings.schema import Settings


class Plan(NamedTuple):
    """What stands between two updates, in steps of every agent, and what an update is made of.

    steps: between two updates. groups: agents of group g are trained on in update g, g + groups, ... uses: updates that
    each step is in. turns: parts of the agents that are answered in turn. Agent a is in group a % groups, turn
    a % turns. in_rounds: agents wait for each other; else, in queues, nobody does, and an update takes any rollouts.
    """

    steps: int
    groups: int = 1
    uses: int = 1
    turns: int = 1
    in_rounds: bool = True

    @property
    def segment(self) -> int:
        """Steps of an agent from one update of its group to the next, which is what lies in a slot."""
        return self.steps * self.groups

    def rollouts(self, agents: int) -> int:
        """The most in an update, one of each agent of a group."""
        return -(-agents // self.groups)

    def first(self, agent: int, generation: int = 1) -> int:
        """Steps in the first rollout of an agent: until the first update of its group.

        An agent that replaces another one (generation 2, 3, ...) has a whole segment.
        """
        return self.steps * (agent % self.groups + 1) if generation == 1 else self.segment

    def begins(self, agent: int, generation: int) -> int:
        """An agent may join at the updates u of which u % groups is this number.

        Its first rollout then ends at the next update of its group.
        """
        return (agent + 1 - self.first(agent, generation) // self.steps) % self.groups


def asks_again(settings: Settings) -> bool:
    """Whether an update comes between a full rollout and the next step.

    Then the value of what follows the rollout is of the weights before the update, and the next action of those after.
    """
    return plan(settings).in_rounds or settings.workers_learn


def plan(settings: Settings) -> Plan:
    """The plan of the schedule named in the settings."""
    schedule, length = settings.batching.schedule, settings.algorithm.rollout_length
    if schedule == "queues":
        return Plan(length, in_rounds=False)
    if schedule != "multi-batch":
        return Plan(length, turns={"synchronous": 1, "alternating": 2}[schedule])
    groups = settings.batching.update_groups
    steps = settings.batching.steps_per_update or max(1, length // groups)
    return Plan(steps, groups, length // (steps * groups))


def rollouts_per_batch(settings: Settings) -> int:
    """The fewest full rollouts that hold `training_batch_min` agent steps; in rounds, one of each agent of a group."""
    schedule = plan(settings)
    if settings.workers_learn:
        return 1
    if schedule.in_rounds:
        return schedule.rollouts(settings.agent_count)
    steps = settings.algorithm.rollout_length * settings.agents.envs_per_agent
    return -(-settings.batching.training_batch_min // steps)
