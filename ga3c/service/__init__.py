"""The service: supervisor, agent processes, predictor and trainer threads, serial mode. Start with `supervisor.py`."""
