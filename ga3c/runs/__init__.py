"""The record of a run: writes it, reads it back and shows it. Start with `recorder.py`."""
