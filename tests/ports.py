"""What a process of agents does with its port."""

from __future__ import annotations

from ga3c.channel import WAIT, Port, Request


def serve(port: Port, request: Request, agent: int | None = None) -> int:
    """Grants a request of `agent`, or of the only one, waiting as long as it takes; the others ask for nothing.

    Raises ServerGone.
    """
    if agent is None:
        agent, = port.agents
    grant = port.ask(agent, request)
    while grant == WAIT:
        (whose, grant), = port.receive()
        assert whose == agent
    return grant
