"""``python -m anode`` is the command ``anode``, as ``torchrun -m anode`` needs it."""

from anode_command import run

if __name__ == "__main__":
    run()
