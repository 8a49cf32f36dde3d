"""The algorithms: the fields that each adds to a slot, their losses, their networks. Start with `base.py`."""
