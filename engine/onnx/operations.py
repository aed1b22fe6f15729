"""The names of the engine's operators in the order of their numbers, which model files store. They are parsed from
engine/include/vme_operators.h, the only list, so that compiling needs neither the library nor cffi."""

import re
from pathlib import Path

_HEADER = Path(__file__).resolve().parent.parent / "include" / "vme_operators.h"


def _rows():
    """Returns {family: cells of its rows}."""
    tables = re.split(r"^#define VME_(\w+)_OPERATORS\(ROW\)", _HEADER.read_text(), flags=re.MULTILINE)[1:]
    return {
        family: [re.split(r",\s*", cells) for cells in re.findall(r"^ +ROW\((.*)\)", rows, flags=re.MULTILINE)]
        for family, rows in zip(tables[::2], tables[1::2])
    }


_ROWS = _rows()
UNARY, BINARY, REDUCE = (
    tuple(cells[1].strip('"') for cells in _ROWS[family]) for family in ("UNARY", "BINARY", "REDUCE")
)
BOOLEAN_RESULTS = {
    cells[1].strip('"') for family in ("UNARY", "BINARY") for cells in _ROWS[family] if cells[3] == "TRUTH"
}
