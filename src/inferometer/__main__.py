"""`python -m inferometer`."""

from inferometer.cli.main import entry

if __name__ == "__main__":
    entry()
