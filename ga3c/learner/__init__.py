"""The learner: version, update lock, updates, snapshots, all TensorFlow calls, checkpoints. Start with `learner.py`."""
