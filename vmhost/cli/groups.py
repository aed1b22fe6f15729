"""The click group that the commands with subcommands are: its list of commands shows each description whole."""

import click


class Group(click.Group):
    """Shows the first sentence of each command's help in full, on several lines if it has to be; click cuts it off."""

    def format_commands(self, context, formatter):
        commands = [(name, self.get_command(context, name)) for name in self.list_commands(context)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in commands])
