"""Agents: the loop of an agent, its process, and environments that may fail. Start with `loop.py`."""
