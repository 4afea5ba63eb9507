"""The command line, as a user has it."""

import json

from eagle3_jax.cli.main import main


def error_of(capsys, *arguments):
    """The one line that a command with bad input says."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err.removeprefix("error: ").rstrip("\n")


def json_of(capsys, *arguments, code=0):
    assert main([*arguments, "--json", "-"]) == code
    return json.loads(capsys.readouterr().out)
