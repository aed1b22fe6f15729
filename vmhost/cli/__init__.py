"""The `vmhost` command: compile, lock, run, inspect, explain, bench, doctor, keys and demo.

One module per command; each is imported when it is asked for, so that `vmhost --help` and completion stay quick. What
goes where and with which exit code stands in `output.py` and `failures.py`.
"""

import importlib
import io
import sys

import click

import vmhost
from vmhost.cli import failures

COMMANDS = ("compile", "lock", "run", "serve", "inspect", "explain", "image", "bench", "doctor", "keys", "demo")
_HELP = ("-h", "--help")


class _Commands(click.Group):
    """The commands in the order in which a new user meets them."""

    def list_commands(self, context):
        return list(COMMANDS)

    def get_command(self, context, name):
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"vmhost.cli.{name}").command


def _print_version(context, parameter, wanted):
    if wanted and not context.resilient_parsing:
        click.echo(f"vmhost {vmhost.__version__}, Python {sys.version.split()[0]}")
        context.exit()


@click.group(cls=_Commands)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def vmhost_command():
    """Run compiled task bundles, each in a Python VM of its own on a thread of its own."""


def main(arguments=None):
    """Runs the command line `arguments` (the process's own if None) and returns its exit code."""
    return run_alone(vmhost_command, "vmhost", arguments)


def run_alone(command, name, arguments=None):
    """Runs the click `command` as the program `name`; as `main` otherwise."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: a name that stdout cannot say is no failure
    try:
        done = command.main(arguments, prog_name=name, standalone_mode=False, help_option_names=_HELP)
        return done or failures.DONE
    except click.ClickException as error:
        error.show()
        return failures.WRONG_INPUT
    except KeyboardInterrupt, click.Abort:
        print(f"{name}: interrupted", file=sys.stderr)
        return failures.INTERRUPTED
