"""One file per command: arguments in, exit code out. Start with `train.py`."""
