"""The names of the engine's operators in the order of their numbers, which files of models have: read from the rows of
engine/include/vme_operators.h, the one list of them, so that neither the library nor cffi is needed to compile."""

import re
from pathlib import Path

_HEADER = Path(__file__).resolve().parent.parent / "include" / "vme_operators.h"


def _rows():
    """{family: the cells of its rows}."""
    tables = re.split(r"^#define VME_(\w+)_OPERATORS\(ROW\)", _HEADER.read_text(), flags=re.MULTILINE)[1:]
    return {
        family: [re.split(r",\s*", cells) for cells in re.findall(r"^ +ROW\((.*)\)", rows, flags=re.MULTILINE)]
        for family, rows in zip(tables[::2], tables[1::2])
    }


_ROWS = _rows()
UNARY, BINARY, REDUCE = (
    tuple(cells[1].strip('"') for cells in _ROWS[family]) for family in ("UNARY", "BINARY", "REDUCE")
)
TRUTHS = {cells[1].strip('"') for family in ("UNARY", "BINARY") for cells in _ROWS[family] if cells[3] == "TRUTH"}
