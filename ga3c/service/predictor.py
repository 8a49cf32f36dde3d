"""A predictor: a thread that answers the agents. Next hop of an observation: `Learner.predict`, and back."""

from __future__ import annotations

import time

from ga3c.learner.learner import Learner, Observed
from ga3c.runs.statistics import PredictionCount
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Slots


def run_predictor(channel: Channel, store: Slots, learner: Learner, batch_max: int, count: PredictionCount,
                  batch_min: int = 1) -> None:
    """Takes waiting requests (up to `batch_max` observations), makes one inference, answers them; until dismissed.

    While other agents play it waits a moment for as many requests as have `batch_min` observations; see
    `Channel.requests`.
    """
    n_envs = store.n_envs
    most = max(1, batch_max // n_envs)
    least = min(most, max(1, batch_min // n_envs))
    room, outside_since = store.empty_observations(most), time.thread_time()
    shared: dict[int, Observed] = {}  # the front of the room, by the number of requests
    for requests in channel.requests(most, least):
        n, taken = len(requests), time.monotonic()
        store.observations(requests.rows, room)
        if n not in shared:
            shared[n] = learner.shared(room[:n].reshape(-1, *room.shape[2:]))
        gathered, before = time.monotonic(), time.thread_time()
        count.outside += before - outside_since
        try:
            outputs, version = learner.predict(shared[n])
        except BaseException:
            channel.ask_again(requests)  # their agents would wait for ever
            raise
        predicted, outside_since = time.monotonic(), time.thread_time()
        requested = store.requested(requests.rows)
        if 0.0 in requested:  # of an agent that has died meanwhile
            requested = [when or taken for when in requested]
        channel.answer(requests, {name: array.reshape(n, n_envs, *array.shape[1:])
                                  for name, array in outputs.items()}, version)
        answered = time.monotonic()
        if count.trace is not None:
            count.trace.predicted(taken, gathered, predicted, answered, requests.agents, requested)
        count.gathering += gathered - taken
        count.predicting += predicted - gathered
        count.answering += answered - predicted
        count.queued += n * taken - sum(requested)
        count.served += n * (answered - taken)
        count.requests += n
        count.predictions += n * n_envs
        count.calls += 1
