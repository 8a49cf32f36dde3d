"""The record of a run: what is written, read back, shown. Start with `recorder.py`."""
