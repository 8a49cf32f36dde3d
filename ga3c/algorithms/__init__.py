"""What is learned: the fields an algorithm adds to a slot, its losses, its networks. Start with `base.py`."""
