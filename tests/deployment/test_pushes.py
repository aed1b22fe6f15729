"""git push to the platform, by git itself: what is accepted, and what is refused with which message."""

import os
import subprocess
import zlib

import pytest

from tests.deployment.platforms import DOUBLE, WorkingCopy, nothing_left, platform_in
from vmhost.deployment.cloud import pack_bounds
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.errors import RefusedError


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    with nothing_left(), platform_in(tmp_path_factory.mktemp("cloud")) as platform, serving(platform) as address:
        yield platform, address, platform.access.add_token("ann", "test")


@pytest.fixture
def work(cloud, tmp_path, request):
    """A working copy of a repository of the test's own."""
    platform, address, token = cloud
    name = request.node.name.partition("[")[0].removeprefix("test_")[:50].replace("_", "-") + str(os.urandom(2).hex())
    platform.add_repository(name, "test")
    copy = WorkingCopy(tmp_path / "work", f"{address}/git/{name}", token, f"task-{os.urandom(4).hex()}")
    copy.task = f"{name}/{copy.branch}"
    return copy


def tags(platform, work):
    repo = platform.open_repository(work.task.partition("/")[0])
    try:
        return sorted(name.decode() for name in repo.refs.as_dict(b"refs/tags"))
    finally:
        repo.close()


def test_a_pushed_tag_becomes_a_version_and_can_be_cloned(cloud, work, tmp_path):
    platform, address, token = cloud
    output = work.release("1.0.0", cases={"two": {"input": 2, "expect": 4}})
    assert "1 simulation cases passed" in output and "is ready; release it" in output
    version = platform.releases.version(work.task, "1.0.0")
    assert version.who == "ann" and version.commit == work.git("rev-parse", "HEAD").split()[0]
    clone = WorkingCopy(tmp_path / "other", work._url, token)
    clone.git("fetch", "-q", work._url, work.branch, "--tags")
    assert clone.git("show", "1.0.0:main.py") == DOUBLE
    # the next one, as a thin pack on what is there, with deltas of files
    output = work.release("1.0.1", main="import math\n" + DOUBLE)
    assert "deltas from the versions before" in output


def test_annotated_tags_an_empty_clone_and_a_push_after_both(cloud, work, tmp_path):
    empty = tmp_path / "empty"
    work.git("clone", "-q", work._url, str(empty))
    work.commit("1.0.0")
    work.git("tag", "-d", "1.0.0")
    work.git("tag", "-a", "v1.0.0", "-m", "the first")
    work.push(work.branch, "v1.0.0")
    version = cloud[0].releases.version(work.task, "1.0.0")
    assert version.commit == work.git("rev-parse", "HEAD").split()[0]
    work.release("1.0.1")
    assert tags(cloud[0], work) == ["1.0.1", "v1.0.0"]


def test_a_token_of_one_repository_neither_pushes_to_nor_reads_another(cloud, work):
    platform, _, token = cloud
    own = work.task.partition("/")[0]
    for scopes in (["push:shop", "read:shop"], [f"push:{own}", f"read:{own}"]):
        limited = platform.access.add_token("ann", "test", scopes=scopes)
        work._url = work._url.replace(token, limited)
        if own in scopes[0]:
            assert "is ready" in work.push(work.branch, "1.0.0")
        else:
            work.commit("1.0.0")
            status, output = work.push(work.branch, "1.0.0", check=False)
            assert status and "needs push (of" in output
            status, output = work.git("ls-remote", work._url, check=False)
            assert status and "needs read (of" in output
        token = limited


def test_a_push_of_a_megabyte_comes_in_chunks(cloud, work):
    work.release("1.0.0", **{"notes.txt": os.urandom(1_500_000).hex()})
    assert tags(cloud[0], work) == ["1.0.0"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"main": "def run(value:\n"}, ["main.py:1", "was never closed"]),
        (
            {"main": "def run(value):\n    return value\n", "cases": {"two": {"input": 2, "expect": 4}}},
            ["two.json: expected 4, got 2"],
        ),
        (
            {"main": "def run(value):\n    return value['x']\n", "cases": {"a": {"input": {}}}},
            ["a.json", "KeyError: 'x'", "main.py"],
        ),
        (
            {"main": "import os\nos.kill(os.getpid(), 9)\ndef run(value): pass\n"},
            ["simulation: import of main", "posix.kill"],
        ),
        ({"simulation/bad.json": "[1]"}, ['bad.json: expected an object with "input"']),
        ({"release.yaml": "steps: [{percent: 200}]"}, ["release.yaml: steps[0]: percent", "got 200"]),
        ({"task.yaml": "name: ["}, ["task.yaml: not YAML"]),
    ],
)
def test_what_is_wrong_with_a_version_is_told_on_the_push_and_nothing_is_taken(cloud, work, what, message):
    work.commit("1.0.0", **what)
    status, output = work.push(work.branch, "1.0.0", check=False)
    assert status and "[remote rejected] 1.0.0" in output
    for each in message:
        assert each in output, output
    assert tags(cloud[0], work) == [] and not cloud[0].has_versions(work.task)
    # the same tag again, once it is right
    work.git("tag", "-d", "1.0.0")
    work.commit(
        "1.0.0",
        **{
            "main": DOUBLE,
            "cases": {"two": {"input": 2, "expect": 4}, "a": {"input": 1}},
            "simulation/bad.json": '{"input": 1}',
            "release.yaml": "steps: [{percent: 100}]",
        },
    )
    work.push(work.branch, "1.0.0")
    assert tags(cloud[0], work) == ["1.0.0"]


def test_versions_never_move_and_history_never_goes(cloud, work):
    work.release("1.0.0")
    work.git("commit", "-q", "--allow-empty", "-m", "more")
    work.git("tag", "-f", "1.0.0")
    for refs, message in (
        (("+1.0.0",), "a version never changes"),
        ((":1.0.0",), "a version never changes"),
        ((f":{work.branch}",), "the branch has versions and cannot be deleted"),
    ):
        status, output = work.push(*refs, check=False)
        assert status and message in output, output
    work.git("commit", "-q", "--amend", "--allow-empty", "-m", "another")
    work.push(work.branch)
    work.git("commit", "-q", "--amend", "--allow-empty", "-m", "rewritten")
    status, output = work.push(f"+{work.branch}", check=False)
    assert status and "branches only grow" in output
    assert tags(cloud[0], work) == ["1.0.0"]


def test_tag_task_yaml_and_branch_must_agree(cloud, work):
    work.write("1.0.0")
    work.git("add", "-A")
    work.git("commit", "-q", "-m", "x")
    work.git("tag", "2.0.0")
    status, output = work.push("2.0.0", check=False)
    assert status and f"says {work.branch} 1.0.0; call the tag 1.0.0 or {work.branch}/1.0.0" in output
    work.git("tag", f"{work.branch}/1.0.0")
    status, output = work.push("HEAD:refs/heads/elsewhere", f"{work.branch}/1.0.0", check=False)
    assert status and f"is not on a branch {work.branch}; push that too" in output
    work.push(work.branch, f"{work.branch}/1.0.0")
    assert cloud[0].has_versions(work.task)


def blob(work, data):
    return (
        subprocess.run(
            ["git", "hash-object", "-w", "--stdin", "--literally", "-t", "blob"],
            cwd=work.folder,
            input=data,
            stdout=subprocess.PIPE,
            check=True,
        )
        .stdout.decode()
        .strip()
    )


def commit_of(work, entries):
    """A commit of a tree with any names and modes, also those that `git mktree` refuses."""
    body = b"".join(f"{mode:o} ".encode() + name + b"\0" + bytes.fromhex(sha) for mode, name, sha in entries)
    tree = (
        subprocess.run(
            ["git", "hash-object", "-w", "--stdin", "--literally", "-t", "tree"],
            cwd=work.folder,
            input=body,
            stdout=subprocess.PIPE,
            check=True,
        )
        .stdout.decode()
        .strip()
    )
    return work.git("commit-tree", tree, "-m", "hostile").split()[0]


@pytest.mark.parametrize(
    ("mode", "name", "message"),
    [
        (0o100644, b"..", "this file name is not allowed"),
        (0o100644, b"a/../../etc", "this file name is not allowed"),
        (0o100644, b".GIT", "this file name is not allowed"),
        (0o100644, b"git~1", "this file name is not allowed"),
        (0o100644, b"line\nbreak", "this file name is not allowed"),
        (0o100644, b"back\\slash", "this file name is not allowed"),
        (0o100644, b"\xff\xfe", "expected a name in UTF-8"),
        (0o120000, b"link", "symbolic links are not accepted"),
        (0o160000, b"module", "submodules are not accepted"),
    ],
)
def test_names_links_and_submodules_that_leave_the_folder_are_refused(cloud, work, mode, name, message):
    commit = commit_of(work, [(mode, name, blob(work, b"/etc/passwd"))])
    status, output = work.push(f"{commit}:refs/heads/{work.branch}", check=False)
    assert status and message in output, output
    repo = cloud[0].open_repository(work.task.partition("/")[0])
    try:
        assert commit.encode() not in repo.object_store  # refused objects are not kept
    finally:
        repo.close()


def test_other_refs_and_names_are_refused(cloud, work):
    work.commit("1.0.0")
    for ref, message in (
        ("refs/heads/a/b", "expected a name"),
        ("refs/notes/x", "only branches and tags"),
        ("refs/heads/-x", ""),
    ):
        status, output = work.push(f"HEAD:{ref}", check=False)
        assert status and message in output, output


def test_who_may_not_push_is_told_so(cloud, work):
    platform, address, _ = cloud
    if not any(each["name"] == "eve" for each in platform.access.accounts()):
        platform.access.add_account("eve", "viewer", "test")
    token = platform.access.add_token("eve", "test")
    work.commit("1.0.0")
    ours = work._url
    work._url = f"{address}/git/{work.task.partition('/')[0]}".replace("://", f"://eve:{token}@")
    status, output = work.push(work.branch, check=False)
    assert status and "403" in output
    work._url = ours.replace("ann:", "ann:x")
    status, output = work.push(work.branch, check=False)
    assert status and ("Authentication failed" in output or "401" in output or "could not read" in output.lower())
    work._url = ours.replace("/git/", "/git/no-such-")
    status, output = work.push(work.branch, check=False)
    assert status and "not found" in output


def pack(*objects, count=None):
    """A receive-pack request with one command and a pack of (type, data, size that it says)."""
    body = b"PACK" + (2).to_bytes(4) + (len(objects) if count is None else count).to_bytes(4)
    for kind, data, size in objects:
        first, size = kind << 4 | size & 15, size >> 4
        while size:
            body += bytes([first | 0x80])
            first, size = size & 0x7F, size >> 7
        body += bytes([first]) + zlib.compress(data)
    return b"0008abcd0000" + body + bytes(20)


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (pack((3, b"x" * 2000, 2000)), "has 2,000 bytes; expected at most 1,000"),
        (pack((3, b"x" * 900, 10)), "larger than it says"),
        (pack(*[(3, b"x" * 900, 900)] * 4), "unpacks to more than 3,000"),
        (pack((3, b"", 0), count=7), "has 7 objects"),
        (pack((3, b"x", 1), count=3), "the pack is damaged"),
        (b"0008abcd0000JUNKJUNKJUNK", "has no git pack"),
        (b"zzzz", "is not git's"),
        (b"", "ends too early"),
    ],
)
def test_packs_that_unfold_to_too_much_are_refused_before_git_code_reads_them(tmp_path, request_body, message):
    path = tmp_path / "request"
    path.write_bytes(request_body)
    with open(path, "rb") as file, pytest.raises(RefusedError, match=message):
        pack_bounds.check(file, 5, 1000, 3000)


def test_results_are_recorded_and_compared_with_those_of_the_version_before(cloud, work):
    platform, _, _ = cloud
    free, same = {"input": 5}, {"input": 7, "same": True}
    assert "gave" not in work.release("1.0.0", cases={"free": free, "same": same})
    keeps_seven = "def run(value):\n    return 14 if value == 7 else value\n"
    output = work.release("1.1.0", main=keeps_seven, cases={"free": free, "same": same})
    assert "simulation/free.json: gives 5, with 1.0.0 it gave 10" in output
    work.commit("1.2.0", main="def run(value):\n    return value\n", cases={"free": free, "same": same})
    status, output = work.push(work.branch, "1.2.0", check=False)
    assert status != 0 and "simulation/same.json: gives 7, with 1.1.0 it gave 14" in output
    assert tags(platform, work) == ["1.0.0", "1.1.0"]
    other_input = {"input": 8, "same": True}
    work.git("tag", "-d", "1.2.0")
    assert "gave" not in work.release(
        "1.2.0", main="def run(value):\n    return value\n", cases={"free": free, "same": other_input}
    )
