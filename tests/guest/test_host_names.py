"""What a gate has checked is what its original uses: codecs, names of arguments and conversions that a task replaces
lead to no other host."""

import socket
import textwrap

import pytest

import vmhost
from tests.hosts import bundle
from vmhost.bytecode.compiler import compile_sources

PROLOGUE = """
import _socket, codecs, os, socket, sys, types
import vmhost.guest

def told(function, *args, **kwargs):
    '''The result, or how it is refused.'''
    try:
        return function(*args, **kwargs)
    except vmhost.guest.PermissionDenied:
        return "denied"
    except (OSError, TypeError, UnicodeError) as error:
        return type(error).__name__

class Named(str):
    '''A keyword argument's name that a dict finds as `means`, and a caller reads as another.'''
    def __new__(cls, text, means):
        self = super().__new__(cls, text)
        self.means = means
        return self
    def __hash__(self):
        return hash(self.means)
    def __eq__(self, other):
        return other == self.means

def codec(name, answer):
    '''Makes `answer` the encoding of every text under `name`.'''
    module = types.ModuleType("encodings." + name)
    module.getregentry = lambda: codecs.CodecInfo(
        lambda text, errors="strict": (answer, len(text)), lambda data, errors="strict": ("", 0), name=name)
    sys.modules["encodings." + name] = module
"""


def run_with(permissions, source, value=None):
    with vmhost.Host(allow_unsigned=True) as host:
        return host.load(bundle(PROLOGUE + textwrap.dedent(source), permissions=permissions))(value)


@pytest.mark.parametrize("function", ["getaddrinfo", "gethostbyname", "gethostbyname_ex"])
def test_a_tasks_own_codec_leads_to_no_other_host(function):
    """The name is granted and does not exist; the codec would make it an address of this machine."""
    told = run_with(
        {"net": ["name.invalid:443"]},
        f"""
        def run(value):
            codec("idna", b"127.0.0.1")
            args = ("name.invalid", 443) if {function!r} == "getaddrinfo" else ("name.invalid",)
            return told(getattr(_socket, {function!r}), *args)
        """,
    )
    assert told == "gaierror"


def test_a_tasks_own_codec_connects_nowhere_else():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = run_with(
            {"net": [f"name.invalid:{port}"]},
            """
            def run(port):
                codec("idna", b"127.0.0.1")
                found = told(socket.getaddrinfo, "name.invalid", port)
                with socket.socket() as connecting:
                    return found, told(connecting.connect, ("127.0.0.1", port))
            """,
            port,
        )
    assert told == ("gaierror", "denied")


@pytest.mark.parametrize("kind", ["net", "listen"])
def test_a_bundles_codec_does_not_widen_its_grants(kind):
    """A grant that is not in ASCII is encoded by the host, not by the codec that the bundle carries."""
    own = """
    import codecs
    def getregentry():
        return codecs.CodecInfo(lambda text, errors="strict": (b"*:*", len(text)), None, name="idna")
    """
    source = PROLOGUE + textwrap.dedent("""
        def run(port):
            with socket.socket() as connecting:
                return told(connecting.connect, ("127.0.0.1", port)), told(connecting.bind, ("127.0.0.1", port))
        """)
    with socket.create_server(("127.0.0.1", 0)) as server, vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            compile_sources(
                {
                    "main": (source, "main.py", False),
                    "encodings": ("", "encodings/__init__.py", True),
                    "encodings.idna": (textwrap.dedent(own), "encodings/idna.py", False),
                },
                name="task",
                version="1.0.0",
                entry="main:run",
                permissions={kind: ["b\xfccher.invalid:443"]},
            )
        )
        assert task(server.getsockname()[1]) == ("denied", "denied")


def test_names_beyond_ascii_are_granted_in_either_form():
    source = """
        def run(value):
            return [told(_socket.gethostbyname, name) for name in ("b\\xfccher", "xn--bcher-kva", "other")]
        """
    assert run_with({"net": ["b\xfccher:443"]}, source) == ["gaierror", "gaierror", "denied"]
    assert run_with({"net": ["*.b\xfccher.invalid:443"]}, source.replace('"b\\xfccher"', '"a.b\\xfccher.invalid"')) == [
        "gaierror",
        "denied",
        "denied",
    ]


def test_a_grant_that_is_no_host_name_is_told():
    with vmhost.Host(allow_unsigned=True) as host:
        with pytest.raises(vmhost.BundleError, match=r"permissions.net: 'a\.\.\xfc:1' is not a host name"):
            host.load(bundle("def run(value): pass", permissions={"net": ["a..\xfc:1"]}))


def test_names_of_arguments_are_what_they_read():
    """getaddrinfo looks its arguments up in a dict, where a name of the task's own class decides what it equals."""
    told = run_with(
        {"net": ["name.invalid:443"], "read": ["/proc/self"]},
        """
        def run(value):
            hidden = {Named("port_", "port"): 443, Named("other", "host"): "localhost"}
            twice = {Named("host", "x"): "name.invalid", "host": "localhost", "port": 443}
            paths = {Named("path", "x"): "/proc/self", "path": "/"}
            read = {Named("host", "host"): "localhost", "port": 1}
            calls = [(_socket.getaddrinfo, hidden), (_socket.getaddrinfo, twice), (os.listdir, paths),
                     (_socket.getaddrinfo, read)]
            return [str(told(function, **named)) for function, named in calls]
        """,
    )
    assert told == ["TypeError", "TypeError", "TypeError", "denied"]


def test_a_databases_arguments_are_what_they_read():
    told = run_with(
        {"read": ["/tmp"], "write": ["/tmp"]},
        """
        import sqlite3
        class Uri(str):
            '''Not found by a check, and found by what it checks for.'''
            looks = 0
            def __hash__(self):
                return hash("uri")
            def __eq__(self, other):
                Uri.looks += 1
                return Uri.looks > 2
        def run(value):
            opened = told(sqlite3.connect, ":memory:", **{Uri("uri"): True})
            return opened if isinstance(opened, str) else type(opened).__name__
        """,
    )
    assert told == "denied"


def test_a_pass_is_for_one_event_of_its_function():
    """A conversion of another argument runs code of the task, which the audit hook goes on watching."""
    told = run_with(
        {"net": ["localhost:443"]},
        """
        import sys
        seen = []
        class Number:
            def __index__(self):
                for event in ("open", "socket.connect", "os.system"):
                    seen.append(told(sys.audit, event))
                return 0
        def run(value):
            _socket.getaddrinfo("localhost", 443, Number())
            seen.append(told(sys.audit, "socket.getaddrinfo"))
            return seen
        """,
    )
    assert told == ["denied"] * 4


def test_long_labels_are_refused_as_in_plain_python():
    names = ["a" * 64, "a..b", ".a", "a" * 63 + ".b.", ""]

    def told(name):
        try:
            socket.gethostbyname(name)
        except OSError as error:
            return type(error).__name__
        except UnicodeError as error:
            return str(error)
        return "found"

    in_vm = """
        def run(names):
            def one(name):
                try:
                    socket.gethostbyname(name)
                except OSError as error:
                    return type(error).__name__
                except UnicodeError as error:
                    return str(error)
                return "found"
            return [one(name) for name in names]
        """
    assert run_with({"net": ["*:*"]}, in_vm, names) == [told(name) for name in names]
