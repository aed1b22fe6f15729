"""`permissions` of a host: the most that its tasks may ask for, by path, address and name; a task that asks for more is
not loaded."""

import os

import pytest

import vmhost
from tests.batches import each
from tests.hosts import bundle
from vmhost.bytecode.format import write_bundle

READER = """
    import os

    def run(path):
        with open(path) as file:
            return file.read()

    def variable(name):
        return os.environ.get(name)
"""


@pytest.fixture
def tree(tmp_path):
    """data/in/file and database/file, and links: data/in/out leads to database, inside to data/in."""
    for folder in ("data/in", "database"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_text(folder)
    (tmp_path / "data/in/out").symlink_to(tmp_path / "database")
    (tmp_path / "inside").symlink_to(tmp_path / "data/in")
    return tmp_path


def load(asked, most=None, task=None, name="task"):
    policy = vmhost.Policy(
        permissions=most, tasks={} if task is None else {name: vmhost.TaskPolicy(permissions=task)}, warm=0, max_warm=0
    )
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        host.load(bundle(READER, name=name, permissions=asked))


def covers(most, asked, kind="read"):
    try:
        load({kind: [asked]}, {kind: [most]})
    except vmhost.BundleError as error:
        assert f"permissions.{kind} {asked!r}" in str(error)
        return False
    return True


@each(
    ("most", "asked", "is_covered"),
    [
        ("data", "data", True),
        ("data", "data/in/file", True),
        ("data/**", "data/in", True),
        ("data", "data/in/**", True),
        ("data", "data/in/not/there/yet", True),
        ("data/in", "data", False),
        ("data", "database", False),
        ("data", "database/file", False),
        ("data", "data/../database/file", False),
        ("data", "data/in/../../database", False),
        ("data", "data/not/there/../../../database", False),
        ("data", "data/in/out", False),
        ("data", "data/in/out/file", False),
        ("database", "data/in/out/file", True),
        ("data", "inside/file", True),
        ("inside", "data/in/file", True),
        ("inside", "data", False),
        ("data", "", False),
        ("data/in/file", "data/in/file/more", True),
        ("data/in/fil", "data/in/file", False),
    ],
)
def test_paths(tree, most, asked, is_covered):
    assert covers(f"{tree}/{most}", f"{tree}/{asked}") == is_covered
    assert covers(f"{tree}/{most}", f"{tree}/{asked}", "write") == is_covered


@pytest.mark.parametrize("asked", ["/", "/**", "//", "/./"])
def test_the_root_is_covered_by_itself_alone(tree, asked):
    assert covers("/", asked) and not covers(f"{tree}/data", asked)


@each(
    ("most", "asked", "is_covered"),
    [
        ("127.0.0.1:8080", "127.0.0.1:8080", True),
        ("127.0.0.1:8080", "127.0.0.1:08080", True),
        ("127.0.0.1:8080", "127.0.0.1:80", False),
        ("127.0.0.1:8080", "127.0.0.1:*", False),
        ("127.0.0.1:*", "127.0.0.1:80", True),
        ("127.0.0.1:8080", "localhost:8080", False),
        ("127.0.0.1:8080", "127.1:8080", False),
        ("127.0.0.1:8080", "2130706433:8080", False),
        ("127.0.0.1:8080", "0177.0.0.1:8080", False),
        ("127.0.0.1:8080", "127.0.0.10:8080", False),
        ("127.0.0.1:8080", "[::ffff:127.0.0.1]:8080", False),
        ("localhost:8080", "127.0.0.1:8080", False),
        ("[::1]:80", "[0:0:0:0:0:0:0:1]:80", True),
        ("[::1]:80", "[::2]:80", False),
        ("[::1]:*", "[::1]:443", True),
        ("[FE80::1]:80", "[fe80::1]:80", True),
        ("*.example.org:443", "www.example.org:443", True),
        ("*.example.org:443", "WWW.Example.ORG:443", True),
        ("*.example.org:443", "a.b.example.org:443", True),
        ("*.example.org:443", "*.example.org:443", True),
        ("*.example.org:443", "*.a.example.org:443", True),
        ("*.example.org:443", "example.org:443", False),
        ("*.example.org:443", "www.example.org:80", False),
        ("*.example.org:443", "*.org:443", False),
        ("*.example.org:443", "*:443", False),
        ("*.example.org:443", "evilexample.org:443", False),
        ("*.example.org:443", "www.example.org.evil.net:443", False),
        ("www.example.org:443", "*.example.org:443", False),
        ("example.org:443", "example.org.:443", False),
        ("kelvin.org:443", "\u212aelvin.org:443", True),  # IDNA has one form for both
        ("kelvin.org:443", "k\u00e9lvin.org:443", False),
        ("xn--bcher-kva.org:443", "b\u00fccher.org:443", True),
        ("*.b\u00fccher.org:*", "www.xn--bcher-kva.org:443", True),
        ("*:443", "anything:443", True),
        ("*:443", "*:*", False),
        ("*:*", "[::1]:1", True),
        ("*:*", "*:*", True),
    ],
)
def test_addresses(most, asked, is_covered):
    assert covers(most, asked, "net") == is_covered
    assert covers(most, asked, "listen") == is_covered


def test_names():
    assert covers("LANG", "LANG", "env") and covers("*", "LANG", "env") and not covers("LANG", "LANGUAGE", "env")


def test_a_kind_that_is_not_named_is_refused_and_none_is_no_narrowing():
    load({"env": ["LANG"], "read": ["/tmp"]})
    load({}, {})
    with pytest.raises(vmhost.BundleError, match=r"permissions.env 'LANG': the host allows none"):
        load({"env": ["LANG"]}, {"read": ["/"]})
    with pytest.raises(vmhost.BundleError, match=r"permissions.host 'price'"):
        policy = vmhost.Policy(permissions={"host": ["other"]})
        with vmhost.Host(allow_unsigned=True, policy=policy, functions={"price": len}) as host:
            host.load(bundle(READER, permissions={"host": ["price"]}))


def test_all_that_is_too_much_is_told_at_once(tree):
    with pytest.raises(vmhost.BundleError) as caught:
        load(
            {"read": [f"{tree}/data", f"{tree}/data/in/out"], "net": ["a:1", "b:2"]},
            {"read": [f"{tree}/data"], "net": ["a:*"]},
        )
    assert str(caught.value).splitlines()[1:] == [
        f"permissions.read '{tree}/data/in/out' ('{tree}/database' on this machine): the host allows {tree}/data",
        "permissions.net 'b:2': the host allows a:*",
    ]


def test_a_tasks_own_narrow_further_and_not_wider():
    load({"env": ["A"]}, {"env": ["A", "B"]}, {"env": ["A"]})
    for most, task in (
        ({"env": ["A", "B"]}, {"env": ["B"]}),
        ({"env": ["B"]}, {"env": ["A"]}),
        (None, {"read": ["/"]}),
    ):
        with pytest.raises(vmhost.BundleError, match="permissions.env 'A'"):
            load({"env": ["A"]}, most, task)


def test_what_is_granted_works_and_nothing_else(tree, monkeypatch):
    monkeypatch.setenv("GIVEN", "1")
    policy = vmhost.Policy(permissions={"read": [f"{tree}/data"], "env": ["*"]})
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        task = host.load(bundle(READER, permissions={"read": [f"{tree}/inside/**"], "env": ["GIVEN"]}))
        assert task(f"{tree}/inside/file") == task(f"{tree}/data/in/file") == "data/in"
        assert task("GIVEN", entry="main:variable") == "1"
        for path in ("database/file", "data/in/out/file", "data/in/../../database/file"):
            with pytest.raises(vmhost.PermissionDenied):
                task(f"{tree}/{path}")


def test_a_link_that_comes_after_the_check_leads_nowhere(tree):
    """The path is granted as it was when it was checked, even if it has changed by the time the VM gets it."""
    policy = vmhost.Policy(permissions={"read": [f"{tree}/data"]}, warm=0, max_warm=0)
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        task = host.load(bundle(READER, permissions={"read": [f"{tree}/data/later", f"{tree}/data/in"]}))
        (tree / "data/later").symlink_to(tree / "database")
        os.rename(tree / "data/in", tree / "data/gone")
        (tree / "data/in").symlink_to(tree / "database")
        for path in ("data/later/file", "data/in/file", "database/file"):
            with pytest.raises(vmhost.PermissionDenied):
                task(f"{tree}/{path}")


@pytest.mark.parametrize(
    ("permissions", "message"),
    [
        (5, "expected a mapping such as"),
        ({"files": []}, "unknown kind 'files'"),
        ({"read": "/data"}, "read: expected a list of names"),
        ({"read": ["data"]}, "read: expected an absolute path"),
        ({"read": ["/da*ta"]}, "read: expected an absolute path"),
        ({"net": ["example.org"]}, "net: expected an address"),
        ({"net": ["http://example.org:80"]}, "net: expected an address"),
        ({"env": ["A-B"]}, "env: expected the name of an environment variable"),
        ({"host": [5]}, "host: expected the name of a host function"),
    ],
)
def test_wrong_caps_are_told(permissions, message):
    for policy in (vmhost.Policy, vmhost.TaskPolicy):
        with pytest.raises(vmhost.ConfigurationError, match=message):
            policy(permissions=permissions)


def test_host_yaml_says_them(tree):
    task = bundle(READER, permissions={"read": [f"{tree}/data/in"]})
    (tree / "task.vmb").write_bytes(write_bundle(task.manifest, task.modules))
    text = f"allow_unsigned: true\nload: [task.vmb]\npermissions: {{read: [{tree}/data]}}\n"
    (tree / "host.yaml").write_text(text)
    with vmhost.Host.from_file(tree / "host.yaml") as host:
        assert host.task("task")(f"{tree}/data/in/file") == "data/in"
    (tree / "host.yaml").write_text(text + "tasks: {task: {permissions: {read: [/nowhere]}}}\n")
    with pytest.raises(vmhost.BundleError, match=f"permissions.read '{tree}/data/in': the host allows /nowhere"):
        vmhost.Host.from_file(tree / "host.yaml")
    (tree / "host.yaml").write_text(
        "permissions:\n  read: [relative]\n  nets: []\ntasks: {x: {permissions: {env: ['']}}}\n"
    )
    with pytest.raises(vmhost.ConfigurationError) as caught:
        vmhost.Host.from_file(tree / "host.yaml")
    message = str(caught.value)
    assert "host.yaml:2: permissions.read.0: expected an absolute path" in message
    assert "host.yaml:3: permissions.nets: unknown key" in message
    assert "host.yaml:4: tasks.x.permissions.env.0: expected the name of an environment variable" in message
