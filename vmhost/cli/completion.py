"""`vmhost completion`: the script by which a shell completes vmhost's commands and options."""

import click
from click.shell_completion import get_completion_class

from vmhost.cli import failures


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@failures.command
def command(output, shell):
    """Print the completion script of SHELL, for its start-up file:

    \b
    bash  ~/.bashrc                              eval "$(vmhost completion bash)"
    zsh   ~/.zshrc                               eval "$(vmhost completion zsh)"
    fish  ~/.config/fish/completions/vmhost.fish  vmhost completion fish | source
    """
    from vmhost.cli import vmhost_command

    script = get_completion_class(shell)(vmhost_command, {}, "vmhost", "_VMHOST_COMPLETE").source()
    output.document({"shell": shell, "script": script})
    output.line(script)
