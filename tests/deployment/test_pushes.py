"""git push to the platform, by git itself: what is accepted, and what is refused with which message."""

import base64
import hashlib
import os
import subprocess
import threading
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from dulwich.object_store import MemoryObjectStore
from dulwich.objects import Blob, Tree

from tests.deployment.platforms import DOUBLE, SPEC, WorkingCopy, nothing_left, platform_in
from vmhost.deployment.cloud import pack_bounds, pushes
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.errors import RefusedError

SPECIAL_LINES = (b"0001", b"0002", b"0003")  # of git's protocol, but not of a push


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
        ({"release.yaml": "steps: [{percent: 200}]"}, ["release.yaml: steps.0.percent", "got 200"]),
    ],
)
def test_what_is_wrong_with_a_version_is_told_on_the_push_and_nothing_is_taken(cloud, work, what, message):
    refused(cloud, work, what, message)


def refused(cloud, work, what, message):
    work.commit("1.0.0", **what)
    status, output = work.push(work.branch, "1.0.0", check=False)
    assert status and "[remote rejected] 1.0.0" in output
    for each in message:
        assert each in output, output
    assert tags(cloud[0], work) == [] and not cloud[0].has_versions(work.task)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"task.yaml": "name: ["}, ["task.yaml:1: not YAML"]),  # refused before the build
        ({"cases": {"two": {"input": 2, "expect": 5}}}, ["two.json: expected 5, got 4"]),  # and by its simulation
    ],
    ids=["description", "simulation"],
)
def test_a_tag_that_was_refused_is_taken_once_it_is_right(cloud, work, what, message):
    refused(cloud, work, what, message)
    work.git("tag", "-d", "1.0.0")
    work.commit(
        "1.0.0",
        **{
            "main": DOUBLE,
            "cases": {"two": {"input": 2, "expect": 4}},
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
    """A commit of a tree with any names and modes."""
    return work.git("commit-tree", tree_of(work, entries), "-m", "hostile").split()[0]


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


def tree_of(work, entries):
    """A tree of any (mode, name, object), also those that `git mktree` refuses."""
    body = b"".join(f"{mode:o} ".encode() + name + b"\0" + bytes.fromhex(sha) for mode, name, sha in entries)
    command = ["git", "hash-object", "-w", "--stdin", "--literally", "-t", "tree"]
    return (
        subprocess.run(command, cwd=work.folder, input=body, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    )


def task_tree(work, version, *entries):
    """A commit of a task that would build, with `entries` beside its files."""
    files = {b"main.py": DOUBLE, b"task.yaml": SPEC.format(name=work.branch, version=version)}
    own = [(0o100644, name, blob(work, text.encode())) for name, text in files.items()]
    tree = tree_of(work, sorted([*own, *entries], key=lambda each: each[1]))
    return work.git("commit-tree", tree, "-m", "hostile").split()[0]


def test_a_branch_and_a_tag_in_one_push_write_no_file_outside_their_folder(cloud, work, tmp_path):
    target = tmp_path / "written"
    for index, name in enumerate((os.fsencode(target), b"../" * 20 + os.fsencode(target).lstrip(b"/"))):
        inner = tree_of(work, [(0o100644, name, blob(work, b"hostile"))])
        version = f"1.0.{index}"
        for commit in (
            task_tree(work, version, (0o100644, name, blob(work, b"hostile"))),
            task_tree(work, version, (0o40000, b"data", inner)),
        ):
            branch, tag = f"{commit}:refs/heads/{work.branch}", f"{commit}:refs/tags/{version}"
            for refs in ((branch, tag), ("--atomic", branch, tag)):
                status, output = work.push(*refs, check=False)
                assert status and output.count("rejected]") == 2, output
                assert not target.exists()
    assert tags(cloud[0], work) == [] and not cloud[0].has_versions(work.task)


def stored(*objects):
    store = MemoryObjectStore()
    for each in objects:
        store.add_object(each)
    return store


def tree_with(*entries):
    tree = Tree()
    for name, mode, item in entries:
        tree.add(name, mode, item.id)
    return tree


def test_a_tree_is_checked_again_where_it_is_written(tmp_path):
    file = Blob.from_string(b"x")
    for index, (name, mode, message) in enumerate(
        (
            (os.fsencode(tmp_path / "out"), 0o100644, "file name is not allowed"),
            (b"..", 0o40000, "file name is not allowed"),
            (b"link", 0o120000, "symbolic links"),
            (b"module", 0o160000, "submodules"),
            (b"folder", 0o40000, "expected a folder, got a blob"),
            (b"fifo", 0o10644, "expected a file, got mode"),
        )
    ):
        tree = tree_with((name, mode, file))
        inside = tmp_path / str(index)
        inside.mkdir()
        with pytest.raises(RefusedError, match=message):
            pushes.write_tree(stored(file, tree), tree.id, inside)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(map(str, range(index + 1)))
    # a tree that is named as a file first is still checked as a folder
    tree = tree_with((b"/etc/passwd", 0o100644, file))
    outer = tree_with((b"file", 0o100644, tree), (b"folder", 0o40000, tree))
    with pytest.raises(RefusedError, match="file name is not allowed"):
        pushes.TreeChecker(stored(file, tree, outer)).check(outer.id)
    with pytest.raises(RefusedError, match="expected a file, got a tree"):
        pushes.write_tree(stored(file, tree, outer), outer.id, tmp_path)


def test_a_small_pack_does_not_write_a_billion_files(tmp_path):
    file = Blob.from_string(b"x" * 1000)
    objects = [file, tree_with(*((b"%d" % each, 0o100644, file) for each in range(10)))]
    for _ in range(8):
        objects.append(tree_with(*((b"%d" % each, 0o40000, objects[-1]) for each in range(10))))
    store = stored(*objects)
    for work in (
        lambda: pushes.TreeChecker(store).check(objects[-1].id),
        lambda: pushes.write_tree(store, objects[-1].id, tmp_path),
    ):
        with pytest.raises(RefusedError, match="more than 20,000 files"):
            work()
    deep = [file, tree_with((b"file", 0o100644, file))]
    for _ in range(40):
        deep.append(tree_with((b"x", 0o40000, deep[-1])))
    checker = pushes.TreeChecker(stored(*deep))
    checker.check(deep[25].id)  # what was checked near the top is checked again further down
    with pytest.raises(RefusedError, match="more than 32 deep"):
        checker.check(deep[-1].id)


def test_a_tag_whose_branch_was_refused_does_not_become_a_version(cloud, work):
    work.release("1.0.0")
    work.git("commit", "-q", "--amend", "-m", "rewritten")
    work.commit("1.1.0", main="def run(value):\n    return 'off the branch'\n")
    for atomic in ((), ("--atomic",)):
        status, output = work.push(*atomic, f"+{work.branch}", "1.1.0", check=False)
        assert status and "branches only grow" in output and "verified" not in output, output
        assert tags(cloud[0], work) == ["1.0.0"]
    assert [each.version for each in cloud[0].releases.versions.values() if each.task == work.task] == ["1.0.0"]


def in_folder(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("atomic", [(), ("--atomic",)], ids=["each", "atomic"])
def test_a_push_that_another_one_overtook_is_told_so(cloud, work, tmp_path, atomic):
    """git's hook runs after it has read the references, and before it sends its own."""
    work.release("1.0.0")
    work.push("HEAD:refs/heads/scratch")
    other = tmp_path / "other"
    work.git("clone", "-q", "-b", work.branch, work._url, str(other))
    hook = work.folder / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    quick = "-c user.name=Ben -c user.email=ben@shop.example commit -q --allow-empty -m quicker"
    push = f"push -q {work._url} HEAD:{work.branch} HEAD:scratch"
    hook.write_text(f"#!/bin/sh\nunset GIT_DIR\ncd {other} && git {quick} && git {push}\n")
    hook.chmod(0o755)
    work.commit("1.1.0")
    status, output = work.push(*atomic, work.branch, "1.1.0", ":scratch", check=False)
    assert status and "failed to update ref" in output and "verified" not in output, output
    assert output.count("rejected] ") == 3, output
    assert tags(cloud[0], work) == ["1.0.0"]
    quicker = in_folder(other, "rev-parse", "HEAD").strip()
    listed = in_folder(other, "ls-remote", work._url)
    assert f"{quicker}\trefs/heads/{work.branch}\n" in listed and f"{quicker}\trefs/heads/scratch\n" in listed


def test_a_pointer_of_git_lfs_is_no_file(cloud, work):
    spec = SPEC.format(name=work.branch, version="1.0.0") + "files: [words.txt]\n"
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    work.commit("1.0.0", **{"task.yaml": spec, "words.txt": pointer})
    status, output = work.push(work.branch, "1.0.0", check=False)
    assert status and "'words.txt' is a pointer of Git LFS, not the file" in output, output


def packs_of(platform, work):
    repo = platform.open_repository(work.task.partition("/")[0])
    try:
        return sorted(os.listdir(repo.object_store.pack_dir))
    finally:
        repo.close()


@pytest.mark.parametrize("what", ["folder", "submodule", "no spec", "exception"])
def test_whatever_fails_in_a_push_is_one_refusal_and_leaves_no_objects(cloud, work, monkeypatch, what):
    tree = tree_of(work, [(0o100644, b"x", blob(work, b"x"))])
    entries = {
        "folder": [(0o40000, b"task.yaml", tree)],
        "submodule": [(0o160000, b"task.yaml", "1" * 40)],
        "no spec": [(0o100644, b"main.py", blob(work, b""))],
        "exception": [(0o100644, b"task.yaml", blob(work, SPEC.format(name=work.branch, version="1.0.0").encode()))],
    }
    message = {"submodule": "submodules are not accepted", "exception": "ValueError: of git code"}
    if what == "exception":

        def fails(*arguments):
            raise ValueError("of git code")

        monkeypatch.setattr(pushes.Push, "_check_names", fails)
    commit = commit_of(work, entries[what])
    status, output = work.push(f"{commit}:refs/tags/1.0.0", check=False)
    assert status and "[remote rejected]" in output and "band" not in output, output
    assert message.get(what, "has no task.yaml at its top") in output
    assert packs_of(cloud[0], work) == []


def test_shallow_clones_push_and_pull_and_filters_are_honoured(cloud, work, tmp_path):
    platform, address, token = cloud
    for version in ("1.0.0", "1.0.1", "1.0.2"):
        work.release(version, **{"data.txt": version * 1000})
    shallow, author = tmp_path / "shallow", ["-c", "user.name=Ann", "-c", "user.email=ann@shop.example"]
    in_folder(tmp_path, "clone", "-q", "--depth", "1", "-b", work.branch, work._url, str(shallow))
    (shallow / "more.txt").write_text("x")
    in_folder(shallow, "add", "-A")
    in_folder(shallow, *author, "commit", "-q", "-m", "of a shallow clone")
    in_folder(shallow, "push", "-q", work._url, f"HEAD:{work.branch}")
    work.git("pull", "-q", "--no-rebase", work._url, work.branch)
    work.release("1.0.3", **{"data.txt": "1.0.0" * 1000})  # a file that the shallow clone has only by name
    in_folder(shallow, *author, "pull", "-q", "--no-rebase", work._url, work.branch)
    assert (shallow / "data.txt").read_text() == "1.0.0" * 1000
    in_folder(shallow, "fsck", "--connectivity-only")
    # a history that begins at a shallow commit is refused, as git does
    name = f"empty-{os.urandom(4).hex()}"
    platform.add_repository(name, "test")
    other = f"{address}/git/{name}".replace("://", f"://ann:{token}@")
    done = subprocess.run(["git", "push", other, f"HEAD:{work.branch}"], cwd=shallow, capture_output=True, text=True)
    assert done.returncode and "shallow update not allowed" in done.stderr, done.stderr
    for depth in ((), ("--depth", "1")):
        partial = tmp_path / f"partial{len(depth)}"
        command = ("clone", "-q", "--no-checkout", *depth, "--filter=blob:none", "-b", work.branch, work._url)
        in_folder(tmp_path, *command, str(partial))
        assert "\n?" in in_folder(partial, "rev-list", "--objects", "--missing=print", "HEAD")
        in_folder(partial, "checkout", "-q", work.branch)  # fetches the missing files by name
        assert (partial / "data.txt").read_text() == "1.0.0" * 1000


def test_endless_builds_keep_nobody_from_other_repositories(cloud, work, tmp_path, monkeypatch):
    platform, address, token = cloud
    begun, end = threading.Semaphore(0), threading.Event()

    def never(*arguments):
        begun.release()
        end.wait(120)
        raise RefusedError("it has ended")

    copies = []
    for index in range(8):
        name = f"busy-{os.urandom(4).hex()}"
        platform.add_repository(name, "test")
        for twice in range(2):
            copies.append(WorkingCopy(tmp_path / f"{index}-{twice}", f"{address}/git/{name}", token, f"task-{twice}"))
            copies[-1].commit("1.0.0")
            copies[-1].git("tag", f"task-{twice}-1.0.0")
    work.commit("1.0.0")
    monkeypatch.setattr(platform.builder, "describe", never)
    with ThreadPoolExecutor(len(copies)) as pushing:
        try:
            done = [pushing.submit(each.push, each.branch, f"{each.branch}-1.0.0", check=False) for each in copies]
            for _ in range(8):
                assert begun.acquire(timeout=60)
            assert not begun.acquire(blocking=False)  # one a repository
            assert work.git("ls-remote", work._url) == ""
            work.push(work.branch)
            assert work.branch in work.git("ls-remote", work._url)
        finally:
            end.set()
        assert all("it has ended" in each.result()[1] for each in done)


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


COMMAND = b" ".join([b"0" * 40, b"1" * 40, b"refs/heads/rank\0report-status side-band-64k"])
PLAIN = COMMAND.partition(b"\0")[0]


def lines(*payloads):
    return b"".join(f"{len(each) + 4:04x}".encode() + each for each in payloads)


def pack_of(*objects, count=None, level=9):
    """A pack of (type, data, size that it says); the first is packed by this level of zlib."""
    body = b"PACK" + (2).to_bytes(4) + (len(objects) if count is None else count).to_bytes(4)
    for kind, data, size in objects:
        first, size = kind << 4 | size & 15, size >> 4
        while size:
            body += bytes([first | 0x80])
            first, size = size & 0x7F, size >> 7
        body += bytes([first]) + zlib.compress(data, level)
        level = 9
    return body + hashlib.sha1(body).digest()


def asked(*objects, count=None):
    """A receive-pack request with one command and a pack."""
    return lines(COMMAND) + b"0000" + pack_of(*objects, count=count)


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (asked((3, b"x" * 2000, 2000)), "has 2,000 bytes; expected at most 1,000"),
        (asked((3, b"x" * 900, 10)), "larger than it says"),
        (asked(*[(3, b"x" * 900, 900)] * 4), "unpacks to more than 3,000"),
        (asked((3, b"", 0), count=7), "has 7 objects"),
        (asked((3, b"x", 1), count=3)[:-20] + bytes(20), "the pack is damaged"),
        (asked((3, b"x", 1)) + b"more", "something follows it"),
        (lines(COMMAND) + b"0000JUNKJUNKJUNK", "has no git pack"),
        (b"zzzz", "is not git's"),
        (b"+001", "is not git's"),
        (lines(b"push!") + b"0000", "is not git's"),
        (lines(COMMAND, PLAIN) + b"0000", "names it twice"),
        (lines(*[PLAIN.replace(b"rank", b"rank%d" % each) for each in range(1001)]) + b"0000", "more than 1,000"),
        (lines(COMMAND), "ends too early"),
        (b"", "ends too early"),
        *((lines(COMMAND) + special + asked((3, b"x" * 2000, 2000)), "is not git's") for special in SPECIAL_LINES),
    ],
)
def test_packs_that_unfold_to_too_much_are_refused_before_git_code_reads_them(tmp_path, request_body, message):
    path = tmp_path / "request"
    path.write_bytes(request_body)
    with open(path, "rb") as file, pytest.raises(RefusedError, match=message):
        pack_bounds.read_request(file)
        pack_bounds.check_pack(file, 5, 1000, 3000)


def post(work, body):
    """The platform's answer to a receive-pack request that git would not send."""
    address, _, rest = work._url.partition("://")[2].partition("@")[2].partition("/")
    secret = base64.b64encode(work._url.partition("://")[2].partition("@")[0].encode()).decode()
    request = urllib.request.Request(
        f"http://{address}/{rest}/git-receive-pack",
        body,
        {"content-type": "application/x-git-receive-pack-request", "authorization": f"Basic {secret}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


@pytest.mark.parametrize("special", SPECIAL_LINES)
def test_a_special_line_does_not_take_a_pack_past_its_limits(cloud, work, special):
    """A reader that takes the line's length for its own skips all but three bytes of the first 64 KiB that it has read:
    there stands the end of the lines, with an empty pack, inside the first file of the pack that git code would read.
    """
    size = (64 << 20) + 1
    empty = b"0000PACK" + (2).to_bytes(4) + (0).to_bytes(4)
    filler = (1 << 16) - 400
    while True:
        body = (
            lines(COMMAND) + special + pack_of((3, bytes(filler) + empty, filler + 16), (3, bytes(size), size), level=0)
        )
        if (missing := (1 << 16) - 3 - body.index(empty)) == 0:
            break
        filler += missing
    answer = post(work, body)
    assert b"unpack ok" not in answer and b"not git's" in answer
    repo = cloud[0].open_repository(work.task.partition("/")[0])
    try:
        assert not list(repo.object_store)
    finally:
        repo.close()


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
