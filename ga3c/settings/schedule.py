"""The schedule of a run in numbers: who waits for whom, what an update takes, how many workers there are.

`Settings.schedule` computes it once. `service/rounds.py` and `service/queues.py` are the state machines that it is
carried out by. A new schedule in rounds is one more case of `_rounds`, and a name among the choices of `schedule` in
`schema.py`.
"""

from __future__ import annotations

import enum
import resource
from typing import TYPE_CHECKING, NamedTuple

from ga3c.settings.algorithms import facts
from ga3c.settings.machine import usable_cores, usable_memory

if TYPE_CHECKING:
    from ga3c.settings.schema import Settings

FROM_MEMORY = ("standard", "concurrent", "synchronised", "both")
"""The schedules in rounds of algorithms that learn from a replay."""

MAX_SLOTS = 65_535
"""The most slots a ticket can name."""

AGENT_DESCRIPTORS = 4       # file descriptors of one agent in the main process
OTHER_DESCRIPTORS = 200     # file descriptors of everything else
OBSERVATION_BYTES = 84 * 84 * 4


class Kind(enum.Enum):
    """How agents, predictions and updates depend on each other.

    QUEUES: no agent waits for another; an update takes any rollouts (GA3C). ROUNDS: agents wait for each other.
    WORKERS: each agent has its own model and trains it (A3C on processors).
    """

    QUEUES = "queues"
    ROUNDS = "rounds"
    WORKERS = "workers"


class Schedule(NamedTuple):
    """The numbers of a schedule. Steps are those of each agent.

    steps: between two updates, or between two points at which a replay is learned from. groups: update u trains on the
    agents of group u % groups. uses: updates that train on each step. turns: parts of the agents that get their
    predictions in turn. Agent a is in group a % groups and turn a % turns. rollouts: in an update. remembers: updates
    are made from a replay, not from the rollouts themselves. epochs: agents act by the target network, and updates
    are made beside the play; both meet after `steps`. slot: steps of a slot; 0: from one update of the group to the
    next. tuned: whether the controller changes the numbers of workers. agents, predictors, trainers: N_A, N_P and N_T
    at the beginning. most: the largest N_A, N_P and N_T that there is room for.
    """

    steps: int
    groups: int = 1
    uses: int = 1
    turns: int = 1
    kind: Kind = Kind.ROUNDS
    rollouts: int = 1
    remembers: bool = False
    epochs: bool = False
    slot: int = 0
    tuned: bool = False
    agents: int = 1
    predictors: int = 0
    trainers: int = 1
    most: tuple[int, int, int] = (1, 1, 1)

    @property
    def agents_wait(self) -> bool:
        """Whether agents wait for each other."""
        return self.kind is Kind.ROUNDS

    @property
    def agents_learn(self) -> bool:
        """Whether each agent has its own model and trains it."""
        return self.kind is Kind.WORKERS

    @property
    def lags(self) -> bool:
        """Whether the policy that is trained differs from the one that played, though all agents use one model."""
        return self.kind is Kind.QUEUES or self.groups > 1 or self.uses > 1

    @property
    def requests_twice(self) -> bool:
        """Whether an update comes between a full rollout and the next step, so that the agent asks twice.

        The value after the rollout comes from the weights before the update, the next action from those after it.
        """
        return self.kind is not Kind.QUEUES

    @property
    def segment(self) -> int:
        """Steps of an agent in one slot: usually from one update of its group to the next."""
        return self.slot or self.steps * self.groups

    @property
    def slots_in_one_thread(self) -> int:
        """The number of slots with which no agent of serial mode ever waits for a free one.

        Each agent holds the rollout it writes and the one it is about to submit. The other slots wait for an update.
        """
        return self.agents * (self.uses + 1) if self.agents_wait else 2 * self.agents + self.rollouts

    def first(self, agent: int, generation: int = 1) -> int:
        """Returns the steps in the first rollout of an agent: until the first update of its group.

        An agent that replaces another one (generation 2, 3, ...) has a whole segment.
        """
        return self.steps * (agent % self.groups + 1) if generation == 1 < self.groups else self.segment

    def begins(self, agent: int, generation: int) -> int:
        """Returns the remainder r: an agent may join at an update u only if u % groups == r.

        Its first rollout then ends at the next update of its group.
        """
        return (agent + 1 - self.first(agent, generation) // self.steps) % self.groups


def schedule_of(settings: Settings) -> Schedule:
    """Computes the schedule of the settings, on this machine."""
    batching, tuning, length = settings.batching, settings.tuning, settings.algorithm.rollout_length
    if facts(settings.algorithm.algorithm).workers_learn:
        agents = tuning.agents or usable_cores()
        return Schedule(length, kind=Kind.WORKERS, agents=agents,
                        most=(max(tuning.agents_max or 0, agents), tuning.predictors, tuning.trainers))
    if batching.schedule != "queues":
        agents = tuning.agents or _usual_agents(settings)
        schedule = _from_memory(settings, agents) if batching.schedule in FROM_MEMORY else _rounds(settings)
        return schedule._replace(agents=agents, rollouts=-(-agents // schedule.groups), most=(agents, 1, 1))
    rollouts = -(-batching.training_batch_min // (length * settings.agents.envs_per_agent))
    remembers = facts(settings.algorithm.algorithm).remembers
    tuned = tuning.dynamic and not settings.run.serial and not remembers
    agents, predictors, trainers = map(int, (tuned and tuning.start or "0/0/0").split("/"))
    agents = agents or tuning.agents or _usual_agents(settings)
    predictors, trainers = predictors or tuning.predictors, trainers or tuning.trainers
    if remembers:  # one thread fills the replay and learns from it
        trainers = 1
    threads = min(16, max(2, usable_cores() // 2)) if tuned else 1
    most = (max(tuning.agents_max or _most_agents(settings, tuned), tuning.agents or 0, agents),
            max(threads, tuning.predictors, predictors),
            1 if remembers else max(threads, tuning.trainers, trainers))
    return Schedule(length, kind=Kind.QUEUES, rollouts=rollouts, remembers=remembers, tuned=tuned, agents=agents,
                    predictors=predictors, trainers=trainers, most=most)


def _rounds(settings: Settings) -> Schedule:
    batching, length = settings.batching, settings.algorithm.rollout_length
    if batching.schedule == "multi-batch":
        groups = batching.update_groups
        steps = batching.steps_per_update or max(1, length // groups)
        return Schedule(steps, groups, length // (steps * groups))
    return Schedule(length, turns={"synchronous": 1, "alternating": 2}[batching.schedule])


def _from_memory(settings: Settings, agents: int) -> Schedule:
    """The four schedules of Daley and Amato (2021): each agent is answered alone or all together, and updates are made
    between rounds or beside them.
    """
    name, length = settings.batching.schedule, settings.algorithm.rollout_length
    epochs = name in ("concurrent", "both")
    slots = -(-settings.replay.target_steps // (agents * settings.agents.envs_per_agent * length)) if epochs else 1
    return Schedule(slots * length, turns=agents if name in ("standard", "concurrent") else 1, remembers=True,
                    epochs=epochs, slot=length)


def _usual_agents(settings: Settings) -> int:
    """Returns the default of N_A: 32 environments per core, but 2 to 16 agents per core.

    Agents that train their own models: one per core (Mnih et al., 2016: 16 on 16 cores).
    """
    return max(2, min(16, 32 // settings.agents.envs_per_agent)) * usable_cores()


def _most_agents(settings: Settings, tuned: bool) -> int:
    """The most agents that are useful and fit: twice the usual number, half the memory, the file descriptors."""
    if not tuned:
        return 0
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 2**20
    return min(4096, 2 * _usual_agents(settings), usable_memory() // 2 // agent_bytes(settings),
               (descriptors - OTHER_DESCRIPTORS) // AGENT_DESCRIPTORS, MAX_SLOTS // settings.agents.slots_per_agent)


def agent_bytes(settings: Settings) -> int:
    """Returns the bytes of memory of one Atari agent process: 104 MB with the defaults, 58 of them slots."""
    slots = settings.agents.slots_per_agent * settings.algorithm.rollout_length * OBSERVATION_BYTES
    return 8 * 2**20 + settings.agents.envs_per_agent * (9 * 2**18 + slots)
