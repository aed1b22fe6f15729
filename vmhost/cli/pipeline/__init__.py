"""`vmhost pipeline`: run stream tasks over events, and look at what they have stored.

One module per command, or for some that belong together; each is imported when it is called or asked for its options.
"""

import importlib

import click
from click.shell_completion import CompletionItem

# Each with its module, and what `vmhost pipeline --help` says of it.
COMMANDS = {
    "run": ("run", "Take events, and run the stream tasks that they trigger."),
    "replay": ("replay", "Feed stored events to a new pipeline, at any speed."),
    "status": ("status", "Show what a folder holds, and what a pipeline there is doing."),
    "tables": ("tables", "List the tables in FOLDER, show one, or export it to Parquet."),
    "table": ("tables", "Show the rows that a stream task has stored, the latest first."),
    "events": ("events", "Show stored events, late ones, or those that were put aside."),
    "features": ("features", "List features, their operators, and their values for a key."),
    "explain-trigger": ("explain_trigger", "Show what triggers a stream task, and how far events have come."),
    "explain-rule": ("explain_rule", "Show a rule's automaton, and what each event does to it."),
    "compile-rule": ("explain_rule", "Compile the conditions of rules, for devices."),
    "match": ("match", "Answer questions: rules of patterns held against events."),
    "dead-letters": ("dead_letters", "Show the calls that were given up, and why."),
    "forget": ("forget", "Remove everything of a person or thing from FOLDER."),
}


class _Commands(click.Group):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.commands = dict.fromkeys(COMMANDS)  # the names that click compares a misspelt one with

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
        return getattr(module, name.replace("-", "_"))


@click.group(cls=_Commands)
def command():
    """Store events, trigger stream tasks, and show what they made."""
