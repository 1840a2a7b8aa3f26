"""What the tests of the command line share."""

from farflung.cli.main import main


def complaint(capsys, *arguments: str, code: int = 2) -> str:
    """Run a command line that must fail with one line on stderr and nothing on stdout."""
    capsys.readouterr()
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("error: ")
    return captured.err
