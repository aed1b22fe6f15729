"""The reference of the command line: a page for each command, from the command itself."""

import inspect

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


def __getattr__(name):
    """The command `vmhost cloud release` as `vmhost__cloud__release`: sphinx-click finds it by module and name."""
    command, (first, *parts) = vmhost_command, name.split("__")
    if first != "vmhost":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for part in parts:
        if part not in getattr(command, "commands", ()):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        command = command.commands[part]
    return command


def _pages(group, path=()):
    """(name of the file, its text) of the commands of a group, and of those of its groups."""
    for name, command in group.commands.items():
        here = (*path, name)
        if isinstance(command, click.Group):
            yield "-".join(here), _page_of_group(command, here)
            yield from _pages(command, here)
        else:
            title = f"vmhost {' '.join(here)}"
            yield (
                "-".join(here),
                f".. click:: commands:{'__'.join(('vmhost', *here))}\n   :prog: {title}\n   :nested: none\n",
            )


def _page_of_group(group, path):
    title = f"vmhost {' '.join(path)}"
    rows = []
    for name, command in group.commands.items():
        rows += [
            f"   * - :doc:`{title} {name} <{'-'.join((*path, name))}>`",
            f"     - {command.get_short_help_str(200)}",
        ]
    names = [f"   {'-'.join((*path, name))}" for name in group.commands]
    head = [title, "=" * len(title), "", inspect.cleandoc(group.help or ""), ""]
    table = [".. list-table::", "   :header-rows: 1", "", "   * - command", "     -", *rows, ""]
    return "\n".join([*head, *table, ".. toctree::", "   :hidden:", "", *names, ""])


def _write_pages(app):
    """Writes the pages to reference/commands/, which git ignores."""
    folder = app.srcdir / "reference" / "commands"
    folder.mkdir(exist_ok=True)
    wanted = {f"{name}.rst": text for name, text in _pages(vmhost_command)}
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # unchanged pages are not built again
            path.write_text(text, encoding="utf-8")


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
