"""Who learns: version, lock, update, snapshot; every call of TensorFlow; checkpoints. Start with `learner.py`."""
