"""How a command ends that was asked for something wrong."""


def refused(result, *words: str) -> None:
    """Fails unless a command ended as one does that was asked for something wrong: one line, exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in line
    for word in words:
        assert word in line
