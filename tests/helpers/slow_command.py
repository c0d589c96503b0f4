"""The command `anode`, slowed down so that a test can kill it in the middle."""

SLOW = """
import inspect, sys, time
from pathlib import Path
from anode.train import fit as module
from anode.train.training import Training
inspect.unwrap(module.fit).__kwdefaults__["checkpoint_every"] = 0
iterate, seen = Training.iterate, Path(sys.argv.pop(1))

def slowly(self):
    if len(self.record) == 6:
        seen.touch()
        time.sleep(1000)
    return iterate(self)

Training.iterate = slowly
from anode.cli import run
run()
"""
"""Keeps a state after every iteration, and after the fifth says so by a file and waits."""
