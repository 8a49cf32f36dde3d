"""The games: Atari, Gymnasium, toys, all behind the protocol in `base.py`."""
