"""The texts that the standard library compiles during its imports, and common ones of its users.

The builder compiles them into the standard-library bundle under their digests (`vmhost.guest.texts.digest`), because a
VM has no compiler.
"""

import marshal
import subprocess
import sys


class RecordingError(Exception):
    """The texts could not be recorded."""


# Plural forms as written in message catalogues (gettext's manual and the Unicode plural rules).
PLURAL_FORMS = (
    "0",
    "n != 1",
    "n > 1",
    "n>1",
    "n!=1",
    "(n != 1)",
    "(n > 1)",
    "(n>1)",
    "(n!=1)",
    "n == 1 ? 0 : 1",
    "n==1 ? 0 : 1",
    "n==0 || n==1 ? 0 : 1",
    "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2",
    "n%10==1 && n%100!=11 ? 0 : n!=0 ? 1 : 2",
    "n==1 ? 0 : n==2 ? 1 : 2",
    "n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2",
    "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2",
    "(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2)",
    "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2",
    "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2",
    "(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2)",
    "(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2)",
    "(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2",
    "n==1 ? 0 : n>=2 && n<=4 ? 1 : 2",
    "(n==1 ? 0 : n>=2 && n<=4 ? 1 : 2)",
    "n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2",
    "n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2",
    "(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2)",
    "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3",
    "(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3)",
    "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5",
    "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 && n%100<=99 ? 4 : 5",
    "n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4",
    "n==1 ? 0 : n==0 || ( n%100>1 && n%100<11) ? 1 : (n%100>10 && n%100<20 ) ? 2 : 3",
    "(n==1) ? 0 : (n==2) ? 1 : (n != 8 && n != 11) ? 2 : 3",
    "(n==1 || n==11) ? 0 : (n==2 || n==12) ? 1 : (n > 2 && n < 20) ? 2 : 3",
    "(n%10!=1 || n%100==11)",
    "n%10!=1 || n%100==11",
)

_RECORDER = """
import builtins, marshal, sys

seen = {}

def recorder(mode, run):
    def recorded(source, /, globals=None, locals=None, **options):
        if isinstance(source, str):
            text, source = source, compile(source, "<string>", mode, dont_inherit=True)
            seen[mode, text] = None
        if globals is None:
            caller = sys._getframe(1)
            globals, locals = caller.f_globals, caller.f_locals if locals is None else locals
        return run(source, globals, locals, **options)
    return recorded

builtins.exec, builtins.eval = recorder("exec", exec), recorder("eval", eval)
modules, plural_forms = marshal.load(sys.stdin.buffer)
out, sys.stdout = sys.stdout, sys.stderr  # what modules print while they are imported
for name in modules:
    try:
        __import__(name)
    except Exception as error:
        print(f"{name}: {error!r}")
import gettext
for form in plural_forms:
    gettext.c2py(form)
marshal.dump(list(seen), out.buffer)
"""


def system_texts(modules):
    """(mode, text) of every text that CPython compiles while it imports `modules`, and of well-known plural forms.

    Imports them in a separate process; one that cannot be imported there is skipped. The same modules give the same
    list. Compile each text with `compile(text, "<string>", mode, dont_inherit=True)`.
    """
    task = marshal.dumps((sorted(modules), PLURAL_FORMS))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", _RECORDER], input=task, capture_output=True, check=False
    )
    if done.returncode:
        raise RecordingError(
            f"recording the texts of the standard library failed with status {done.returncode}:\n{done.stderr.decode()}"
        )
    return sorted(marshal.loads(done.stdout))
