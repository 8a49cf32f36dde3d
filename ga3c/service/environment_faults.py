"""Environments that failed, in agents' processes or in serial mode: all are counted, each kind is logged once."""

from __future__ import annotations

from ga3c.runs.recorder import Recorder

_MOST_KINDS = 1000


class EnvironmentFaults:
    """Those of one run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kinds: set[tuple[str, ...]] = set()

    def note(self, agent: int, new: int, trace: str) -> str:
        """So many of this agent's have failed; returns the cause of the last one, of which `trace` is the traceback."""
        recorder = self._recorder
        recorder.statistics.environment_faults += new
        lines = trace.strip().splitlines() or ["unknown"]
        cause = lines[-1][:200]
        # Its type and where it was raised: a message may have a number in it that is different each time.
        kind = (lines[-1].split(":")[0], *[line for line in lines if line.startswith("  File ")][-1:])
        if kind not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(kind)
            recorder.event("environment_failed", agent=agent, cause=cause)
            recorder.log(f"An environment of agent {agent} failed: {cause}. Others of this kind are only counted; the "
                         f"traceback is in {recorder.log_path}")
            recorder.note(trace)
        return cause
