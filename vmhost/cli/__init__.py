"""The `vmhost` command.

One module per command; each is imported when it is called or its options are listed, so that `vmhost --help` and
completion stay quick. `output.py` and `failures.py` define where output goes, and the exit codes.
"""

import importlib
import io
import os
import sys

import click
from click.shell_completion import CompletionItem

import vmhost
from vmhost.cli import failures
from vmhost.cli.examples import with_examples
from vmhost.cli.output import Output
from vmhost.supported import version_line

# In the order in which a new user meets them, with the texts that `vmhost --help` shows.
GROUPS = {
    "Write and compile tasks": {
        "init": "Make a folder with a task that compiles and runs.",
        "compile": "Compile task FOLDERs into signed bundles.",
        "test": "Run the tests in task FOLDERs.",
        "lock": "Pin the packages that a task or a script requires.",
        "record": "Run PROGRAM, and record the source texts that its VMs will need.",
        "inspect": "List the contents of BUNDLE, and who signed it.",
    },
    "Run them": {
        "run": "Call BUNDLE's entry point and print the result.",
        "serve": "Serve the bundles in FOLDER: calls and answers are lines of JSON.",
        "replay": "Run recorded calls in a new version, and compare.",
        "demo": "Run the shipped tasks side by side, and check them.",
    },
    "Watch them": {
        "dashboard": "Show the dashboard of a host under load.",
        "top": "Show a running host's tasks, live.",
        "coverage": "Show which lines and branches of tasks ran.",
        "crashes": "List the crashes recorded in STATE, or show one.",
        "debug": "Debug a host remotely, by a link, with consent at the device.",
    },
    "Models": {
        "explain": "Show how the engine computes MODEL, and how long each step takes.",
        "quantize": "Quantize an ONNX model to 8 or 4 bits; compare accuracy and speed.",
    },
    "Events, devices and fleets": {
        "pipeline": "Store events, trigger stream tasks, and show their results.",
        "reach": "Test a pipeline's channels; show what was sent to whom, what was not, and why.",
        "tunnel": "Serve devices, send messages, push to devices, and show the state of it all.",
        "cloud": "Serve the deployment platform; release tasks, watch them, roll them back.",
        "agent": "Keep this device's tasks in step with the platform.",
        "image": "Make a device image.",
    },
    "This installation": {
        "doctor": "Check this machine and installation.",
        "keys": "Make and list signing keys, and manage trusted signers.",
        "bench": "Measure VMs against threads, processes and InterpreterPool.",
        "completion": "Print the completion script of a shell.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_EXAMPLE = (
    "vmhost init hello",
    "vmhost compile hello -o hello.vmb",
    "vmhost run hello.vmb --allow-unsigned --input hello/input.json",
)
_HELP = ("-h", "--help")


class _Commands(click.Group):
    """The commands of COMMANDS. Listing, completing and suggesting names imports none of them."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.commands = dict.fromkeys(COMMANDS)  # for click's suggestions for a misspelt name

    def list_commands(self, context):
        return list(COMMANDS)

    def format_commands(self, context, formatter):
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in commands.items()])
        with formatter.section("Example"):
            for line in _EXAMPLE:
                formatter.write_text(line)

    def shell_complete(self, context, incomplete):
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, context, incomplete)]

    def get_command(self, context, name):
        if name not in COMMANDS:
            return None
        return with_examples(importlib.import_module(f"vmhost.cli.{name}").command, name)


def _print_version(context, parameter, wanted):
    if wanted and not context.resilient_parsing:
        click.echo(version_line(vmhost.__version__))
        context.exit()


@click.group(cls=_Commands)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def vmhost_command():
    """Run compiled task bundles, each in a Python VM and on a thread of its own."""


def main(arguments=None):
    """Runs the command line `arguments` (the process's own if None) and returns its exit code."""
    return run_alone(vmhost_command, "vmhost", arguments)


def run_alone(command, name, arguments=None):
    """Runs the click `command` as the program `name`; as `main` otherwise."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: an unprintable name must not be an error
    try:
        done = command.main(arguments, prog_name=name, standalone_mode=False, help_option_names=_HELP)
        return done or failures.DONE
    except click.ClickException as error:
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            failure = failures.Failure(error.format_message(), kind="UsageError")
            failures.report(Output(True), failure, failure.exit_code)
        else:
            error.show()
        return failures.WRONG_INPUT
    except FileNotFoundError as error:
        if error.filename is not None or os.stat(".").st_nlink > 0:  # no name: the error is of os.getcwd()
            raise
        print(f"{name}: the working folder was removed; go to one that exists", file=sys.stderr)
        return failures.WRONG_INPUT
    except KeyboardInterrupt, click.Abort:
        print(f"{name}: interrupted", file=sys.stderr)
        return failures.INTERRUPTED
