"""Communication between processes: slots of shared memory, tickets, queues. Start with `channel.py`."""
