"""An Atari 2600 of our own: exact next to ale-py's on the games proven so, and about twice as fast."""
