"""Who plays: an agent's loop, its process, its environments that may fail. Start with `loop.py`."""
