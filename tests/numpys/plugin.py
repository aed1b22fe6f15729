"""The pytest plugin of `python -m tests.numpys`: test modules are imported with NumPy exchanged, a statement that fails
there leaves a name that raises its error, and each outcome is written as one line of JSON to $NUMPYS_OUTCOMES."""

import ast
import copy
import json
import os
import signal

import _pytest.assertion.rewrite as rewriting
import hypothesis
import hypothesis.extra.numpy  # before NumPy is exchanged
import pytest

from . import exchange

_SECONDS = 60  # a test
_MARKERS = ("leaks_references", "parallel_threads", "iterations", "slow", "thread_unsafe", "valgrind_error")
hypothesis.settings.register_profile(
    "numpys",
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=20,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    suppress_health_check=list(hypothesis.HealthCheck),
)
_exchange = exchange.Exchange()
_rewrite = rewriting.rewrite_asserts


_HARNESS = "__import__('tests.numpys.exchange').numpys.exchange"


def _tolerant(body):
    """The statements, each of which may fail: then its lists are made item by item, and at last what it would have
    bound is bound to what raises its error."""
    kept = []
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            statement.body = _tolerant(statement.body)
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__" or _is_docstring(statement):
            kept.append(statement)
            continue
        by_items = _ByItems().visit(copy.deepcopy(statement)) if not isinstance(statement, ast.ClassDef) else ast.Pass()
        refused = [f"{name} = {_HARNESS}.refused({name!r}, error_of_import)" for name in _bound(statement)]
        handler = ast.parse(
            "try:\n    pass\nexcept Exception as error_of_import:\n    try:\n        pass\n"
            "    except Exception:\n        " + "\n        ".join(refused or ["pass"])
        ).body[0]
        if isinstance(by_items, ast.Pass):
            handler.handlers[0].body = handler.handlers[0].body[0].handlers[0].body
        else:
            handler.handlers[0].body[0].body = [by_items]
        handler.body = [statement]
        kept.append(ast.copy_location(handler, statement))
    return kept


def _is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class _ByItems(ast.NodeTransformer):
    """Lists whose items are made one by one: one that fails is a Refused. Bodies of functions stay as they are."""

    def visit_FunctionDef(self, node):
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        return node

    def visit_Lambda(self, node):
        return node

    def visit_List(self, node):
        if not isinstance(node.ctx, ast.Load) or any(isinstance(item, ast.Starred) for item in node.elts):
            return node
        attempt = ast.parse(f"{_HARNESS}.attempt", mode="eval").body
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        node.elts = [ast.Call(attempt, [ast.Lambda(nothing, self.visit(item))], []) for item in node.elts]
        return node


def _bound(statement):
    """The names that a statement binds; none for what is no definition, import or assignment."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _rewritten(module, *arguments, **keywords):
    module.body = _tolerant(module.body)
    ast.fix_missing_locations(module)
    _rewrite(module, *arguments, **keywords)


def pytest_configure(config):
    hypothesis.settings.load_profile("numpys")
    for marker in _MARKERS:
        config.addinivalue_line("markers", f"{marker}: NumPy's")
    rewriting.rewrite_asserts = _rewritten
    rewriting._read_pyc = lambda *arguments: None


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    if not isinstance(collector, pytest.Module):
        yield
        return
    with _exchange:
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """A test whose table of cases could not be made raises the error of the table."""
    marks = getattr(obj, "pytestmark", ())
    for mark in marks if isinstance(marks, (list, tuple)) else ():
        if mark.name != "parametrize" or len(mark.args) < 2:
            continue
        names, cases = mark.args[:2]
        count = len(names.split(",")) if isinstance(names, str) else len(names)
        if isinstance(cases, exchange.Refused) and not isinstance(obj, type):
            return pytest.Function.from_parent(collector, name=name, callobj=cases.as_test(name))
        if isinstance(cases, list) and count > 1:  # a case that could not be made is one of all names
            cases[:] = [(case,) * count if isinstance(case, exchange.Refused) else case for case in cases]
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    def stop(number, frame):
        raise TimeoutError(f"the test took longer than {_SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, 1)  # and again, where a test catches it
    _write(item.nodeid, "began", "")
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
        _write(report.nodeid, report.outcome, text if report.outcome == "failed" else "")


def pytest_collectreport(report):
    if report.outcome == "failed":
        _write(report.nodeid, "failed", str(report.longrepr)[-1000:])


def _write(name, outcome, text):
    with open(os.environ["NUMPYS_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps([name, outcome, text if len(text) < 800 else f"{text[:400]} ... {text[-400:]}"]) + "\n")
