"""The reference of the command line: a page for each command, from the command itself."""

import click

from vmhost.cli import GROUPS, vmhost_command

INDEX = "reference/command"
_MARK = "<!-- the commands -->"


def _imported(group):
    """Imports each command of a click group, which the command line does when one is used, and gives it the name by
    which it is called: the functions of most are named `command`."""
    with click.Context(group) as context:
        group.commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    for name, command in group.commands.items():
        command.name = name
        if isinstance(command, click.Group):
            _imported(command)


def _write_pages(app):
    """Writes reference/commands/NAME.rst for each command; git ignores that folder."""
    folder = app.srcdir / "reference" / "commands"
    folder.mkdir(exist_ok=True)
    wanted = {f"{name}.rst": _page(name) for name in vmhost_command.commands}
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # unchanged pages are not built again
            path.write_text(text, encoding="utf-8")


def _page(name):
    return f".. click:: vmhost.cli.{name}:command\n   :prog: vmhost {name}\n   :nested: full\n"


def _list_commands(app, page, source):
    if page != INDEX:
        return
    groups = []
    for title, commands in GROUPS.items():
        rows = [f"| [`vmhost {name}`](commands/{name}.rst) | {text} |" for name, text in commands.items()]
        groups.append("\n".join([f"## {title}", "| command | |", "| --- | --- |", *rows]))
    names = "\n".join(f"commands/{name}" for name in vmhost_command.commands)
    assert _MARK in source[0], INDEX
    toctree = f"```{{toctree}}\n:hidden:\n\n{names}\n```"
    source[0] = source[0].replace(_MARK, "\n\n".join([*groups, toctree]))


def setup(app):
    _imported(vmhost_command)
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _list_commands)
    return {"parallel_read_safe": True}
