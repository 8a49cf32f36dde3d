"""A predictor: a thread that answers the agents. Next hop of an observation: `learner.Learner.predict`, and back."""

from __future__ import annotations

import time

from ga3c.learner.learner import Learner, Observed
from ga3c.runs.trace import Trace
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Slots


class PredictionCount:
    """Written by one predictor, read by anyone. Times are sums of seconds on the wall clock, but for `outside`.

    predictions: observations; calls: of the model; requests: tickets, one per agent that waited. Over calls: gathering
    observations, in the model, answering. Over requests: in the queue, and being served once taken from it.
    `outside`: processor seconds that the thread took outside the model.
    `trace`, where there is one, gets every call.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.predictions = self.calls = self.requests = 0
        self.gathering = self.predicting = self.answering = 0.0
        self.queued = self.served = self.outside = 0.0


def run_predictor(channel: Channel, store: Slots, model: Learner, batch_max: int, count: PredictionCount,
                  batch_min: int = 1) -> None:
    """Takes waiting requests (up to `batch_max` observations), one inference, answers them; until dismissed.

    While other agents play it waits a moment for as many as have `batch_min` observations, see `Channel.requests`.
    """
    n_envs = store.n_envs
    most = max(1, batch_max // n_envs)
    least = min(most, max(1, batch_min // n_envs))
    room, told = store.room(most), time.thread_time()
    shared: dict[int, Observed] = {}  # the front of the room, by the number of requests
    for requests in channel.requests(most, least):
        n, taken = len(requests), time.monotonic()
        store.look(requests.at, room)
        if n not in shared:
            shared[n] = model.shared(room[:n].reshape(-1, *room.shape[2:]))
        gathered, before = time.monotonic(), time.thread_time()
        count.outside += before - told
        try:
            outputs, version = model.predict(shared[n])
        except BaseException:
            channel.ask_again(requests)  # their agents would wait for ever
            raise
        predicted, told = time.monotonic(), time.thread_time()
        asked = store.when_asked(requests.at)
        if 0.0 in asked:  # of an agent that has died meanwhile
            asked = [when or taken for when in asked]
        policy, value = outputs["policy"], outputs["value"]
        channel.answer(requests, policy.reshape(n, n_envs, -1), value.reshape(n, n_envs), version)
        answered = time.monotonic()
        if count.trace is not None:
            count.trace.predicted(taken, gathered, predicted, answered, requests.agents, asked)
        count.gathering += gathered - taken
        count.predicting += predicted - gathered
        count.answering += answered - predicted
        count.queued += n * taken - sum(asked)
        count.served += n * (answered - taken)
        count.requests += n
        count.predictions += n * n_envs
        count.calls += 1
