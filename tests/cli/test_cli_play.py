import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

from anode.cli import app

PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun without
import anode_command
anode_command.run()
"""


@pytest.mark.slow
def test_the_page_is_served_until_ctrl_c():
    command = [sys.executable, "-c", PROGRAM, "play", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            page = re.fullmatch(
                r"anode play: (http://127\.0\.0\.1:\d+/)   \(press Ctrl-C to stop\)\n", started.stdout.readline()
            )
            with urllib.request.urlopen(page[1], timeout=30) as answer:
                assert answer.status == 200
            started.send_signal(signal.SIGINT)
            said, errors = started.communicate(timeout=30)
        finally:
            started.kill()
    assert (started.returncode, said, errors) == (0, "stopped\n", "")


def test_a_port_in_use_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = CliRunner().invoke(app, ["play", "--no-browser", "--port", str(port)])
    line = f"error: port: {port} is used by another program; choose another, or 0 to pick a free one\n"
    assert (said.exit_code, said.stderr) == (2, line)
