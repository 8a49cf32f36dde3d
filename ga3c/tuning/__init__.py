"""The choice of N_A, N_P and N_T: the controllers, their use in a run, the diagnosis. Start with `tuner.py`."""
