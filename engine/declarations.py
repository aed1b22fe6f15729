"""The declarations that cffi reads: those of HEADERS, and the rows of vme_operators.h, taken
from the headers themselves, so that they cannot drift.

`python -m vmhost.engine.declarations OUT.c` writes the C source of `vmhost.engine._vme`, the host's binding; setup.py
runs it at build time. Needs cffi; nothing inside a VM imports this."""

import re
import sys
from pathlib import Path

_INCLUDE = Path(__file__).resolve().parent / "include"
HEADERS = (_INCLUDE / "vme.h", _INCLUDE / "vme_search.h", _INCLUDE / "vme_foreign.h")
OPERATORS = _INCLUDE / "vme_operators.h"


def operators():
    """{table: the names of its rows} of vme_operators.h: {"VME_UNARY_OPERATORS": ["NEGATIVE", ...], ...}."""
    tables = re.split(r"^#define (VME_\w+)\(ROW\)", OPERATORS.read_text(), flags=re.MULTILINE)[1:]
    return {table: re.findall(r"\bROW\((\w+),", rows) for table, rows in zip(tables[::2], tables[1::2])}


def declarations():
    """The text for `FFI.cdef`: structs, enums and functions of the headers, and their integer constants."""
    text = re.sub(r"/\*.*?\*/", "", "".join(header.read_text() for header in HEADERS), flags=re.DOTALL)
    constants = re.findall(r"^#define (VME_[A-Z_]+) +([0-9]+)u?\s*$", text, flags=re.MULTILINE)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for table, names in operators().items():  # enums filled by the preprocessor
        text = text.replace(f"{table}(VME_ENUMERATOR)", "".join(f"VME_{name}, " for name in names))
    for name, value in constants:  # array sizes
        text = text.replace(f"[{name}]", f"[{value}]")
    return "".join(f"#define {name} ...\n" for name, _ in constants) + text.replace("VME_API ", "")


def binding():
    """The cffi builder of `vmhost.engine._vme`."""
    from cffi import FFI

    builder = FFI()
    builder.cdef(declarations())
    builder.set_source("vmhost.engine._vme", '#include "vme_foreign.h"\n#include "vme_search.h"\n')
    return builder


if __name__ == "__main__":
    binding().emit_c_code(sys.argv[1])
