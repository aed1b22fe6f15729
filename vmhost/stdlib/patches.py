"""The changes that the standard library needs to run in a VM, without a compiler above all, as edits of its sources.

Used where the standard-library bundle is built: every source goes through `patch(module_name, source)` before it is
compiled. Each edit names the piece of source that it replaces, which must be there exactly once; a Python whose source
differs fails the build with the module and the piece, and needs this file looked at again.

`system_texts()` lists the texts that the standard library compiles while it is imported, or that its users ask for
most; the builder compiles them and puts them into the bundle under their digests (`vmhost.guest.texts.digest`).

This file imports the standard library only: it is loaded by its path, by the builder, in a process that is no VM.
"""

import sys


class PatchError(Exception):
    """A source is not what an edit expects."""


# module -> list of (piece of source, what stands there instead)
EDITS = {
    "collections": [
        (
            "    __new__ = eval(code, namespace)\n",
            "    from vmhost.guest import texts\n    __new__ = texts.namedtuple_new(code, namespace, field_names)\n",
        ),
    ],
    "dataclasses": [
        ("        self.src = []\n", "        self.src = []\n        self.parts = []\n"),
        (
            "        args = ','.join(args)\n        body = '\\n'.join(body)\n",
            (
                "        self.parts.append((name, args, body, decorator))\n"
                "        args = ','.join(args)\n"
                "        body = '\\n'.join(body)\n"
            ),
        ),
        (
            "        ns = {}\n        exec(txt, self.globals, ns)\n        fns = ns['__create_fn__'](**self.locals)\n",
            (
                "        from vmhost.guest import texts\n"
                "        fns = texts.dataclass_functions(txt, self.globals, self.locals, self.parts)\n"
            ),
        ),
        # copy is for asdict and astuple of what they do not know
        ("import copy\n", "from vmhost.guest import deferred as _deferred\ncopy = _deferred.Module('copy')\n"),
        # inspect is for one line of documentation and for the unwrapping of methods
        ("import inspect\n", ""),
        (
            (
                "            text_sig = str(inspect.signature(\n"
                "                cls,\n"
                "                annotation_format=annotationlib.Format.FORWARDREF,\n"
                "            )).replace(' -> None', '')\n"
            ),
            (
                "            from vmhost.guest import signatures\n"
                "            text_sig = signatures.of_class(cls).replace(' -> None', '')\n"
            ),
        ),
        (
            "        member = inspect.unwrap(member)\n",
            "        from vmhost.guest import signatures\n        member = signatures.unwrapped(member)\n",
        ),
    ],
    "types": [
        (
            (
                "            co = func.__code__\n"
                "            # 0x100 == CO_ITERABLE_COROUTINE\n"
                "            func.__code__ = co.replace(co_flags=co.co_flags | 0x100)\n"
                "            return func\n"
            ),
            "            from vmhost.guest import texts\n            return texts.generator_as_coroutine(func)\n",
        ),
    ],
    "annotationlib": [
        (
            "                return eval(code, globals=globals, locals=locals)\n",
            "                return _texts.evaluate(code, globals, locals)\n",
        ),
        (
            "                result = eval(code, globals=globals, locals=new_locals)\n",
            "                result = _texts.evaluate(code, globals, new_locals)\n",
        ),
        (
            '            self.__code__ = compile(_rewrite_star_unpack(arg), "<string>", "eval")\n',
            "            self.__code__ = _texts.expression(_rewrite_star_unpack(arg))\n",
        ),
        (
            "        else eval(_rewrite_star_unpack(value), globals, locals)\n",
            "        else _texts.evaluate_text(_rewrite_star_unpack(value), globals, locals)\n",
        ),
        # ast is for the STRING format and for names that are not known yet
        (
            "import ast\n",
            "from vmhost.guest import deferred as _deferred, texts as _texts\nast = _deferred.Module('ast')\n",
        ),
        (
            "                ast.BinOp(self.__get_ast(), op, rhs), extra_names\n",
            "                ast.BinOp(self.__get_ast(), getattr(ast, op)(), rhs), extra_names\n",
        ),
        (
            "                ast.BinOp(new_other, op, self.__get_ast()), extra_names\n",
            "                ast.BinOp(new_other, getattr(ast, op)(), self.__get_ast()), extra_names\n",
        ),
        ("                    ops=[op],\n", "                    ops=[getattr(ast, op)()],\n"),
        (
            "            return self.__make_new(ast.UnaryOp(op, self.__get_ast()))\n",
            "            return self.__make_new(ast.UnaryOp(getattr(ast, op)(), self.__get_ast()))\n",
        ),
        *(
            (f"_make_{kind}(ast.{name}())\n", f"_make_{kind}({name!r})\n")
            for kind, names in {
                "binop": "Add Sub Mult MatMult Div Mod LShift RShift BitOr BitXor BitAnd FloorDiv Pow",
                "rbinop": "Add Sub Mult MatMult Div Mod LShift RShift BitOr BitXor BitAnd FloorDiv Pow",
                "compare": "Lt LtE Eq NotEq Gt GtE",
                "unary_op": "Invert UAdd USub",
            }.items()
            for name in names.split()
        ),
        (
            "class _ExtraNameFixer(ast.NodeTransformer):\n",
            (
                "def _ExtraNameFixer(extra_names):\n"
                "    fixer = ast.NodeTransformer()\n"
                "    fixer.visit_Name = lambda node: _FixedName.visit_Name(fixer, node)\n"
                "    fixer.extra_names = extra_names\n"
                "    return fixer\n"
                "\n"
                "\n"
                "class _FixedName:\n"
            ),
        ),
    ],
    "ast": [
        (
            (
                "    return compile(source, filename, mode, flags,\n"
                "                   _feature_version=feature_version, optimize=optimize)\n"
            ),
            (
                "    if isinstance(source, AST):\n"
                "        return source\n"
                "    from vmhost.guest import expressions\n"
                "    return expressions.parse(source, filename, mode)\n"
            ),
        ),
        (
            "        node_or_string = parse(node_or_string.lstrip(\" \\t\"), mode='eval')\n",
            (
                "        from vmhost.guest import expressions\n"
                '        node_or_string = expressions.parse_literal(node_or_string.lstrip(" \\t"))\n'
            ),
        ),
    ],
    # inspect is for awaitables of other kinds than coroutines, traceback for what went wrong
    **{
        f"asyncio.{name}": [
            (
                "import inspect\n",
                "from vmhost.guest import deferred as _deferred\ninspect = _deferred.Module('inspect')\n",
            )
        ]
        for name in ("coroutines", "runners", "tasks")
    },
    "asyncio.format_helpers": [
        ("import inspect\n", "from vmhost.guest import deferred as _deferred\n"),
        ("import traceback\n", "inspect = _deferred.Module('inspect')\ntraceback = _deferred.Module('traceback')\n"),
    ],
    "asyncio.base_tasks": [
        ("import linecache\n", "from vmhost.guest import deferred as _deferred\n"),
        (
            "import traceback\n",
            "linecache = _deferred.Module('linecache')\ntraceback = _deferred.Module('traceback')\n",
        ),
    ],
    # logging is for those who have something to say
    "asyncio.log": [
        ("import logging\n", "from vmhost.guest import deferred as _deferred\n"),
        (
            "logger = logging.getLogger(__package__)\n",
            "logger = _deferred.Result('logging', 'getLogger', __package__)\n",
        ),
    ],
    "asyncio.futures": [
        ("import logging\n", ""),
        ("STACK_DEBUG = logging.DEBUG - 1", "STACK_DEBUG = 10 - 1"),
    ],
    "concurrent.futures._base": [
        ("import logging\n", "from vmhost.guest import deferred as _deferred\n"),
        (
            'LOGGER = logging.getLogger("concurrent.futures")\n',
            'LOGGER = _deferred.Result("logging", "getLogger", "concurrent.futures")\n',
        ),
    ],
    # OpenSSL is for those who connect with TLS
    "asyncio.base_events": [
        (
            "import traceback\n",
            "from vmhost.guest import deferred as _deferred\ntraceback = _deferred.Module('traceback')\n",
        ),
        ("try:\n    import ssl\nexcept ImportError:  # pragma: no cover\n    ssl = None\n", ""),
        ("from . import sslproto\n", ""),
        (
            "    if ssl is not None and isinstance(sock, ssl.SSLSocket):\n",
            "    ssl = sys.modules.get('ssl')\n    if ssl is not None and isinstance(sock, ssl.SSLSocket):\n",
        ),
        (
            "        if ssl is None:\n            raise RuntimeError('Python ssl module is not available')\n",
            "        import ssl\n        from . import sslproto\n",
        ),
    ],
    "asyncio.selector_events": [
        ("try:\n    import ssl\nexcept ImportError:  # pragma: no cover\n    ssl = None\n", ""),
        ("from . import sslproto\n", ""),
        (
            "        ssl_protocol = sslproto.SSLProtocol(\n",
            "        from . import sslproto\n        ssl_protocol = sslproto.SSLProtocol(\n",
        ),
    ],
    # The compiler of regular expressions is for those that are only known at run time. RegexFlag's values are its
    # constants, and the empty pattern, whose type is wanted, is the one instruction SUCCESS.
    "re": [
        (
            "from . import _compiler, _parser\n",
            (
                "from vmhost.guest import deferred as _deferred\n"
                "_compiler, _parser = _deferred.Module('re._compiler'), _deferred.Module('re._parser')\n"
            ),
        ),
        *(
            (f"= _compiler.SRE_FLAG_{name}", f"= {value}")
            for name, value in {
                "ASCII": 256,
                "IGNORECASE": 2,
                "LOCALE": 4,
                "UNICODE": 32,
                "MULTILINE": 8,
                "DOTALL": 16,
                "VERBOSE": 64,
                "DEBUG": 128,
            }.items()
        ),
        (
            "Pattern = type(_compiler.compile('', 0))\nMatch = type(_compiler.compile('', 0).match(''))\n",
            (
                "Pattern = type(_sre.compile('', 32, [1], 0, {}, (None,)))\n"
                "Match = type(_sre.compile('', 32, [1], 0, {}, (None,)).match(''))\n"
            ),
        ),
    ],
    # Regular expressions are for json's Python forms, which stand in for `_json`, and for blanks at both ends: most
    # programs that read JSON need no others, and go without `re`, `enum` and what these import.
    "json.decoder": [
        ("import re\n", "from vmhost.guest import deferred as _deferred\nre = _deferred.Module('re')\n"),
        ("FLAGS = re.VERBOSE | re.MULTILINE | re.DOTALL\n", "FLAGS = 88    # re.VERBOSE | re.MULTILINE | re.DOTALL\n"),
        ("HEXDIGITS = re.compile(", "HEXDIGITS = _deferred.Result('re', 'compile', "),
        ("STRINGCHUNK = re.compile(", "STRINGCHUNK = _deferred.Result('re', 'compile', "),
        ("WHITESPACE = re.compile(", "WHITESPACE = _deferred.Result('re', 'compile', "),
        ("_m=HEXDIGITS.match):", "_m=lambda *at: HEXDIGITS.match(*at)):"),
        ("_m=STRINGCHUNK.match):", "_m=lambda *at: STRINGCHUNK.match(*at)):"),
        ("memo=None, _w=WHITESPACE.match, _ws", "memo=None, _w=lambda *at: WHITESPACE.match(*at), _ws"),
        ("scan_once, _w=WHITESPACE.match, _ws", "scan_once, _w=lambda *at: WHITESPACE.match(*at), _ws"),
        ("    def decode(self, s, _w=WHITESPACE.match):\n", "    def decode(self, s, _w=None):\n"),
        (
            "        obj, end = self.raw_decode(s, idx=_w(s, 0).end())\n        end = _w(s, end).end()\n",
            (
                "        if _w is not None:\n"
                "            obj, end = self.raw_decode(s, idx=_w(s, 0).end())\n"
                "            end = _w(s, end).end()\n"
                "        else:\n"
                "            first = len(s) - len(s.lstrip(WHITESPACE_STR)) if s[:1] in WHITESPACE_STR else 0\n"
                "            obj, end = self.raw_decode(s, idx=first)\n"
                "            if end != len(s):\n"
                "                end = len(s) - len(s[end:].lstrip(WHITESPACE_STR))\n"
            ),
        ),
    ],
    "json.encoder": [
        ("import re\n", "from vmhost.guest import deferred as _deferred\nre = _deferred.Module('re')\n"),
        ("ESCAPE = re.compile(", "ESCAPE = _deferred.Result('re', 'compile', "),
        ("ESCAPE_ASCII = re.compile(", "ESCAPE_ASCII = _deferred.Result('re', 'compile', "),
        ("HAS_UTF8 = re.compile(", "HAS_UTF8 = _deferred.Result('re', 'compile', "),
    ],
    "json.scanner": [
        ("import re\n", "from vmhost.guest import deferred as _deferred\nre = _deferred.Module('re')\n"),
        ("NUMBER_RE = re.compile(\n", "NUMBER_RE = _deferred.Result('re', 'compile', \n"),
        ("    (re.VERBOSE | re.MULTILINE | re.DOTALL))\n", "    88)     # re.VERBOSE | re.MULTILINE | re.DOTALL\n"),
    ],
    "gettext": [
        (
            (
                "        exec('''if True:\n"
                "            def func(n):\n"
                "                if not isinstance(n, int):\n"
                "                    n = _as_int(n)\n"
                "                return int(%s)\n"
                "            ''' % result, ns)\n"
                "        return ns['func']\n"
            ),
            (
                "        from vmhost.guest import texts\n"
                "        return texts.plural_function('''if True:\n"
                "            def func(n):\n"
                "                if not isinstance(n, int):\n"
                "                    n = _as_int(n)\n"
                "                return int(%s)\n"
                "            ''' % result, result, ns)\n"
            ),
        ),
    ],
    "logging.config": [
        (
            "            defaults = eval(defaults, vars(logging))\n",
            "            defaults = _texts.evaluate_text(defaults, vars(logging))\n",
        ),
        (
            "            klass = eval(klass, vars(logging))\n",
            "            klass = _texts.evaluate_text(klass, vars(logging))\n",
        ),
        ("        args = eval(args, vars(logging))\n", "        args = _texts.evaluate_text(args, vars(logging))\n"),
        (
            "        kwargs = eval(kwargs, vars(logging))\n",
            "        kwargs = _texts.evaluate_text(kwargs, vars(logging))\n",
        ),
        ("import logging\n", "import logging\nfrom vmhost.guest import texts as _texts\n"),
        # sockets are for configurations that come over the network
        ("from socketserver import ThreadingTCPServer, StreamRequestHandler\n", ""),
        (
            "    class ConfigStreamHandler(StreamRequestHandler):\n",
            (
                "    from socketserver import ThreadingTCPServer, StreamRequestHandler\n"
                "    class ConfigStreamHandler(StreamRequestHandler):\n"
            ),
        ),
    ],
    "inspect": [
        ("            value = eval(s, module_dict)\n", "            value = _texts.evaluate_text(s, module_dict)\n"),
        (
            "                value = eval(s, sys_module_dict)\n",
            "                value = _texts.evaluate_text(s, sys_module_dict)\n",
        ),
        ("import ast\n", "import ast\nfrom vmhost.guest import texts as _texts\n"),
    ],
    "unittest.mock": [
        (
            (
                '    src = """def %s(*args, **kwargs):\n'
                "    _checksig_(*args, **kwargs)\n"
                '    return mock(*args, **kwargs)""" % name\n'
                "    exec (src, context)\n"
                "    funcopy = context[name]\n"
            ),
            (
                "    def funcopy(*args, **kwargs):\n"
                "        checksig(*args, **kwargs)\n"
                "        return mock(*args, **kwargs)\n"
                "    funcopy.__name__ = funcopy.__qualname__ = name\n"
            ),
        ),
        (
            (
                '    src = """async def %s(*args, **kwargs):\n'
                "    _checksig_(*args, **kwargs)\n"
                '    return await mock(*args, **kwargs)""" % name\n'
                "    exec (src, context)\n"
                "    funcopy = context[name]\n"
            ),
            (
                "    async def funcopy(*args, **kwargs):\n"
                "        checksig(*args, **kwargs)\n"
                "        return await mock(*args, **kwargs)\n"
                "    funcopy.__name__ = funcopy.__qualname__ = name\n"
            ),
        ),
    ],
    # pydoc is for the pages of servers that document themselves, which a VM does not have
    "xmlrpc.server": [
        ("import pydoc\n", "from vmhost.guest import deferred as _deferred\npydoc = _deferred.Module('pydoc')\n"),
        (
            "            return pydoc.getdoc(method)\n",
            "            import inspect\n            return inspect.getdoc(method) or ''\n",
        ),
        (
            "class ServerHTMLDoc(pydoc.HTMLDoc):\n",
            (
                "class ServerHTMLDoc:\n"
                "    def __init__(self):\n"
                "        pydoc.HTMLDoc       # ImportError: a VM does not have it\n"
            ),
        ),
    ],
    "zoneinfo._common": [
        (
            '        raise ZoneInfoNotFoundError(f"No time zone found with key {key}")\n',
            (
                "        import os\n        from . import TZPATH\n        advice = '' if any(map(os.path.isdir,"
                " TZPATH)) else (\n            '; a VM reads time zones where task.yaml grants it: permissions: {read:"
                " [/usr/share/zoneinfo]}')\n        raise ZoneInfoNotFoundError(f\"No time zone found with key"
                ' {key}{advice}")\n'
            ),
        ),
    ],
    # a task owns what it makes, whoever runs the host
    "tarfile": [
        ('        if hasattr(os, "geteuid") and os.geteuid() == 0:\n', "        if False:\n"),
    ],
    # what programs are prepared for where a locale can't be had
    "locale": [
        (
            "    return _setlocale(category, locale)\n",
            (
                "    try:\n        return _setlocale(category, locale)\n    except PermissionError as error:\n       "
                " from _vmhost import PermissionDenied\n        raise type('PermissionDenied', (PermissionDenied,"
                " Error), {'__module__': 'vmhost.guest'})(*error.args) from None\n"
            ),
        ),
    ],
    "linecache": [
        (
            "        # Try looking through the module search path, which is only useful\n",
            (
                "        # A file of the bundle: the source of a module, if the task names it among its files\n"
                "        if isinstance(filename, str) and '@' in filename:\n"
                "            from vmhost.guest import files\n"
                "            try:\n"
                "                lines = files.read_text(filename).splitlines(True)\n"
                "            except (OSError, UnicodeDecodeError):\n"
                "                return []\n"
                "            cache[filename] = sum(map(len, lines)), None, lines, filename\n"
                "            return lines\n"
                "        # Try looking through the module search path, which is only useful\n"
            ),
        ),
    ],
    "traceback": [
        ("import tokenize\n", ""),
        # Carets and suggestions that need the parser are left out, as CPython does for sources that it cannot parse.
        (
            (
                "        with suppress(SyntaxError, ImportError):\n"
                "            import ast\n"
                "            tree = ast.parse('\\n'.join(all_lines))\n"
            ),
            (
                "        with suppress(SyntaxError, ImportError, RuntimeError):\n"
                "            import ast\n"
                "            tree = ast.parse('\\n'.join(all_lines))\n"
            ),
        ),
        (
            '        tree = ast.parse(f"(\\n{segment}\\n)")\n    except SyntaxError:\n',
            '        tree = ast.parse(f"(\\n{segment}\\n)")\n    except (SyntaxError, RuntimeError):\n',
        ),
        (
            "        assert self._is_syntax_error\n        import codeop\n",
            "        return  # needs a compiler to try the suggestions with\n",
        ),
    ],
}


def patch(module_name, source):
    """`source` of a standard-library module as a VM needs it; PatchError where an edit's place is not there once."""
    for piece, replacement in EDITS.get(module_name, ()):
        found = source.count(piece)
        if found != 1:
            raise PatchError(
                f"{module_name}: an edit for VMs expects this piece of source once, and finds it "
                f"{found} times:\n{piece}\nlook at what this Python ({sys.version.split()[0]}) has there, and change "
                "EDITS in vmhost/stdlib/patches.py"
            )
        source = source.replace(piece, replacement)
    return source


# Plural forms as they stand in message catalogues (gettext's manual and the Unicode plural rules).
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

    Runs them in a process of its own; a module that cannot be imported there is passed over. Same modules, same list.
    Compile each with `compile(text, "<string>", mode, dont_inherit=True)`.
    """
    import marshal  # here, because patching must not depend on modules that are patched
    import subprocess

    task = marshal.dumps((sorted(modules), PLURAL_FORMS))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", _RECORDER], input=task, capture_output=True, check=False
    )
    if done.returncode:
        raise PatchError(
            f"recording the texts of the standard library failed with status {done.returncode}:\n{done.stderr.decode()}"
        )
    return sorted(marshal.loads(done.stdout))
