"""`vmhost pipeline`: run stream tasks over events, and inspect the stored results.

One module per command or group of commands; each is imported when it is called or its options are listed.
"""

import importlib

import click
from click.shell_completion import CompletionItem

from vmhost.cli.examples import with_examples

# Each with its module, and the text that `vmhost pipeline --help` shows.
COMMANDS = {
    "run": ("run", "Take events, and run the stream tasks that they trigger."),
    "replay": ("replay", "Feed stored events to a new pipeline, at any speed."),
    "status": ("status", "Show the contents of a folder, and the state of its pipeline."),
    "tables": ("tables", "List the tables in FOLDER, show one, or export it to Parquet."),
    "table": ("tables", "Show a stream task's rows, the latest first."),
    "events": ("events", "Show stored events, late ones, or lines that were set aside."),
    "features": ("features", "List features, their operators, and their values for a key."),
    "explain-trigger": ("explain_trigger", "Show what triggers a stream task, and matches under way."),
    "explain-rule": ("explain_rule", "Show a rule's automaton, and the effect of each event."),
    "compile-rule": ("explain_rule", "Compile the conditions of rules, for devices."),
    "match": ("match", "Match rules against events, both from a file of questions."),
    "dead-letters": ("dead_letters", "Show the calls that were given up, and why."),
    "forget": ("forget", "Remove everything of a person or thing from FOLDER."),
}


class _Commands(click.Group):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.commands = dict.fromkeys(COMMANDS)  # for click's suggestions for a misspelt name

    def list_commands(self, context):
        return list(COMMANDS)

    def format_commands(self, context, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, context, incomplete):
        named = [(name, text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        found = [CompletionItem(name, help=text) for name, text in named]
        return [*found, *click.Command.shell_complete(self, context, incomplete)]

    def get_command(self, context, name):
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"vmhost.cli.pipeline.{COMMANDS[name][0]}")
        return with_examples(getattr(module, name.replace("-", "_")), "pipeline", name)


@click.group(cls=_Commands)
def command():
    """Store events, trigger stream tasks, and show their results."""
