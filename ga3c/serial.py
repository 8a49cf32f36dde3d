"""Serial mode: the same agents, store, model and record in one thread, in a fixed order. Repeatable to the byte.

Each round all agents' pending predictions are answered by one inference, in the order of the agents; then each agent
goes on to its next prediction; a training is made as soon as enough rollouts have been handed in.
"""

from __future__ import annotations

from collections import deque

from ga3c.agent import agent_seed, play, seeded
from ga3c.channel import PREDICT, SUBMIT, TAKE
from ga3c.config import Settings
from ga3c.environment import make_environment
from ga3c.interruption import Interruption
from ga3c.model import Model
from ga3c.rollout import RolloutStore
from ga3c.run import Run
from ga3c.stats import Workers
from ga3c.trainer import rollouts_per_batch


def run_serial(settings: Settings, run: Run, model: Model, interruption: Interruption) -> str:
    """Plays and trains until a limit is reached or a signal came; returns which."""
    n_agents, n_envs = settings.agent_count, settings.envs_per_agent
    n_rollouts = rollouts_per_batch(settings)
    # Nobody waits here: each agent has the rollout it writes and the one it is about to hand in; the rest wait to be
    # trained on.
    store = RolloutStore(run.spec, settings.t_max, n_envs, 2 * n_agents + n_rollouts)
    free = deque(range(store.n_slots))
    submitted: deque[int] = deque()
    batch = store.empty_batch(n_rollouts)
    count = run.statistics.new_count()

    environments, players = [], []
    for agent in range(n_agents):
        environment_seed, rng = seeded(agent_seed(settings, agent, 1, model.agent_steps))
        environment = make_environment(settings, n_envs)
        environment.reset(environment_seed)
        environments.append(environment)
        players.append(play(environment, store, rng))

    def train() -> None:
        slots = [submitted.popleft() for _ in range(n_rollouts)]
        store.gather(slots, batch, 0)
        free.extend(slots)
        update = model.train(batch)
        if update is not None:
            run.statistics.report(update, batch)
        run.statistics.drain()  # so that a limit on episodes falls at the same update in every run

    def advance(agent: int, grant: int | None) -> tuple[int, int]:
        """Resumes one agent until it asks for a prediction; returns that (slot, row)."""
        kind, slot, row = next(players[agent]) if grant is None else players[agent].send(grant)
        while kind != PREDICT:
            if kind == TAKE:
                kind, slot, row = players[agent].send(free.popleft())
            else:
                assert kind == SUBMIT
                submitted.append(slot)
                if len(submitted) == n_rollouts:
                    train()
                kind, slot, row = players[agent].send(0)
        return slot, row

    run.start()
    pending = [advance(agent, None) for agent in range(n_agents)]
    workers = Workers(n_agents, 1, 1, 0, 0)
    while True:
        slots, rows = (list(column) for column in zip(*pending, strict=True))
        observation = store.observation[slots, rows]
        policy, value, version = model.predict(observation.reshape(-1, *run.spec.observation_shape))
        store.policy[slots, rows] = policy.reshape(n_agents, n_envs, -1)
        store.value[slots, rows] = value.reshape(n_agents, n_envs)
        store.version[slots, rows] = version
        count.predictions += len(value)
        count.calls += 1
        for agent in range(n_agents):
            pending[agent] = advance(agent, 0)
            if run.reached(model.agent_steps):
                break
        run.tick(model, workers, [])
        if interruption.take_checkpoint_wish():
            run.save_or_warn(model)
        reason = interruption.name or run.reached(model.agent_steps)
        if reason:
            for environment in environments:
                environment.close()
            return reason
