"""What is remembered: steps of all environments, and how they are drawn to learn from. Start with `ring.py`."""
