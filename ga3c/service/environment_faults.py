"""Counts environments that failed, in agents' processes or in serial mode, and logs each kind once."""

from __future__ import annotations

from ga3c.runs.recorder import Recorder

_MOST_KINDS = 1000


class EnvironmentFaults:
    """The environment failures of one run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kinds: set[tuple[str, ...]] = set()

    def note(self, agent: int, new: int, trace: str) -> str:
        """Counts `new` failures of this agent's environments. Returns the cause of the last one, from its traceback."""
        recorder = self._recorder
        recorder.statistics.environment_faults += new
        lines = trace.strip().splitlines() or ["unknown"]
        cause = lines[-1][:200]
        # A kind is the exception's type and place, without its message: that may contain a changing number.
        kind = (lines[-1].split(":")[0], *[line for line in lines if line.startswith("  File ")][-1:])
        if kind not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(kind)
            recorder.event("environment_failed", agent=agent, cause=cause)
            recorder.log(f"An environment of agent {agent} failed: {cause}. Others of this kind are only counted; the "
                         f"traceback is in {recorder.log_path}")
            recorder.note(trace)
        return cause
