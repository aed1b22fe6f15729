"""Debugging links on the command line: the options of commands that make one, and how a link is shown."""

import time

import click

from vmhost.cli import quantities

ALL_SCOPES = ("config", "logs", "run", "reports")
SCOPES = click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(ALL_SCOPES),
    help="What the session may do; may be repeated. [default: all of it]",
)
VALID = click.option(
    "--for", "valid_s", default="15 min", show_default=True, type=quantities.Time(), help="How long it is valid."
)
NO_QR = click.option("--no-qr", is_flag=True, help="Show no QR code.")


def show(output, link, no_qr=False):
    """Prints a link, and its QR code."""
    from vmhost.operations.debugging import qr

    until = time.strftime("%H:%M:%S", time.localtime(link.expires_s))
    output.document({"link": link.text, "id": link.id, "scopes": list(link.scopes), "expires_s": link.expires_s})
    if not no_qr and not output.as_json:
        try:
            for line in qr.terminal(link.text):
                output.line(line)
        except ImportError as error:
            output.remark(str(error))
    output.line(link.text)
    output.line(
        f"link {link.id} opens one session for {', '.join(link.scopes)}, until {until}; share it with nobody else"
    )
