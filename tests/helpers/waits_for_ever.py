"""A module to run: says its process id, and waits."""

import os
import signal
import sys

if __name__ == "__main__":
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    signal.pause()
