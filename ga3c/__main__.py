"""`python -m ga3c`: the same as `ga3c-train`."""

from ga3c.commands.train import main

if __name__ == "__main__":
    main()
