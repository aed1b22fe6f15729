# requires: rich
import io

from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax
from rich.table import Table


def run(value):
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="truecolor", legacy_windows=False)
    table = Table("a", "b")
    table.add_row("1", "北京 :smile:")
    console.print(table, Markdown("# x\n\n* y"), Syntax("x = 1", "python"))
    return console.file.getvalue()
