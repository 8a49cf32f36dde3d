"""What a process of agents does with its port, and a trainer with the channel."""

from __future__ import annotations

from ga3c.transport.channel import WAIT, Channel, Port, Request


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


def collected(channel: Channel, most: int, oldest: bool = False) -> tuple[list[int], bool]:
    """(slots of rollouts that were collected and given back at once, whether the trainer shall end)."""
    with channel.collect(most, oldest) as found:
        return found
