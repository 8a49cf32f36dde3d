"""A predictor: a thread that answers the agents. Next hop of an observation: `Learner.predict`."""

from __future__ import annotations

import time

from ga3c.learner.learner import Learner, Observed
from ga3c.runs.statistics import PredictionCount
from ga3c.transport.channel import Channel, Requests
from ga3c.transport.slots import Slots


class Predictor:
    """The work of one predictor. Answers at most `most` requests at a time, and counts its work."""

    def __init__(self, channel: Channel, store: Slots, learner: Learner, most: int, count: PredictionCount) -> None:
        self._channel = channel
        self._store = store
        self._learner = learner
        self._count = count
        self._buffer = store.empty_observations(most)
        self._outside_since = time.thread_time()
        self._shared: dict[int, Observed] = {}  # number of requests -> the front of the buffer

    def leave_out(self, seconds: float) -> None:
        """Excludes processor seconds that this thread spent on other work since its last answer."""
        self._outside_since += seconds

    def answer(self, requests: Requests) -> None:
        """Makes one inference for all requests and answers them. If the learner raises, none is answered."""
        n, taken, store, count, buffer = len(requests), time.monotonic(), self._store, self._count, self._buffer
        store.observations(requests.rows, buffer)
        if n not in self._shared:
            self._shared[n] = self._learner.shared(buffer[:n].reshape(-1, *buffer.shape[2:]))
        gathered, before = time.monotonic(), time.thread_time()
        count.outside += before - self._outside_since
        outputs, version = self._learner.predict(self._shared[n])
        predicted, self._outside_since = time.monotonic(), time.thread_time()
        requested = store.requested(requests.rows)
        if 0.0 in requested:  # the agent has died meanwhile
            requested = [when or taken for when in requested]
        self._channel.answer(requests, {name: array.reshape(n, store.n_envs, *array.shape[1:])
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
        count.predictions += n * store.n_envs
        count.calls += 1


def run_predictor(channel: Channel, store: Slots, learner: Learner, batch_max: int, count: PredictionCount,
                  batch_min: int = 1) -> None:
    """Takes waiting requests (up to `batch_max` observations), makes one inference, answers them; until dismissed.

    Waits briefly, while other agents play, until the requests have about `batch_min` observations (dynamic batching,
    see `Channel.requests`).
    """
    most = max(1, batch_max // store.n_envs)
    predictor = Predictor(channel, store, learner, most, count)
    for requests in channel.requests(most, min(most, max(1, batch_min // store.n_envs))):
        try:
            predictor.answer(requests)
        except BaseException:
            channel.ask_again(requests)  # else their agents would wait for ever
            raise
