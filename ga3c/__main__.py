"""`python -m ga3c`: the same as `ga3c-train`."""

from ga3c.commands.launch import train

if __name__ == "__main__":
    train()
