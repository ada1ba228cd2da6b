"""The command line, called in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from whence import cli


def run(*words, code=0, stdin=None):
    """Run a command; it ends with the code, without a traceback."""
    result = CliRunner().invoke(cli.app, [str(w) for w in words], input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def command_refused(code, said, *words, **more):
    """A call that fails says one sentence on stderr, and nothing on stdout."""
    result = run(*words, code=code, **more)
    assert said in result.stderr
    assert result.stdout == ""
    return result.stderr
