"""Who may use a route: each says at its handler the scope that it needs and whose it is. Both are checked here,
before the handler runs, and as far as possible before a byte of the request's body is read.

    @route("GET", "/versions", "read", LISTED)
    def versions(self, call): ...

`whose` is one of

    PUBLIC          anybody: it has nothing secret, or its handler checks a ticket or a link
    DEVICE          a device, by its secret
    ACCOUNT         any known account
    FLEET           the whole scope: it concerns all repositories
    LISTED          the scope for some repository: the handler shows only what `call.may` allows
    Of(function)    the repository or task that `function(platform, call)` returns; "": it belongs to none, as FLEET
    OfBody(key)     the repository or task that the body names

Each Starlette route of the platform has its Rule as the attribute `rule` (`ruled`); /git has `git_http.SERVICES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.convertors import IntegerConvertor, register_url_convertor


class _Id(IntegerConvertor):
    """A number that a store can hold; any other is in no path."""

    regex = "[0-9]{1,18}"


register_url_convertor("id", _Id())
PUBLIC, DEVICE = "public", "device"
ACCOUNT, FLEET, LISTED = "account", "fleet", "listed"


@dataclass(frozen=True)
class Of:
    function: Callable


@dataclass(frozen=True)
class OfBody:
    key: str


@dataclass(frozen=True)
class Call:
    """A request by `identity`: the parts of its path, its query, its body (plain data, or bytes), and from where it
    came."""

    identity: Any
    parts: Mapping
    query: Mapping
    body: Any = None
    scope: str | None = None
    network: str = ""

    def may(self, task):
        """Whether the caller has the route's scope for this task or repository; "": for what belongs to none."""
        return self.identity.may(self.scope, task.partition("/")[0])


@dataclass(frozen=True)
class Rule:
    """Who may use a route. `scope`: None where no account, or any, is needed."""

    method: str
    path: str
    scope: str | None
    whose: Any
    takes_bytes: bool = False

    def before_body(self, platform, call):
        """AccessDeniedError if the caller may not do this, whatever the body is."""
        if self.whose is ACCOUNT:
            return
        if self.whose is FLEET:
            call.identity.must(self.scope)
            return
        call.identity.must_somewhere(self.scope)
        if isinstance(self.whose, Of):
            self._must(call, self.whose.function(platform, call))

    def after_body(self, call):
        """The same where the body says whose it is. The body has the route's schema."""
        if isinstance(self.whose, OfBody):
            self._must(call, call.body[self.whose.key])

    def _must(self, call, task):
        call.identity.must(self.scope, str(task).partition("/")[0] or None)


def route(method, path, scope, whose, *, takes_bytes=False):
    """Decorates the handler of a route: a method that is called with a Call. `takes_bytes`: the body is no JSON."""

    def mark(function):
        function.rule = Rule(method, path, scope, whose, takes_bytes)
        return function

    return mark


def rules_of(kind):
    """[(Rule, name of its handler)] of a class, in the order of their definitions."""
    return [(each.rule, name) for name, each in vars(kind).items() if hasattr(each, "rule")]


def ruled(rule, route):
    """The Starlette route, with its rule."""
    route.rule = rule
    return route


def public(route):
    """The Starlette route, open to anybody."""
    [method] = (route.methods or {"GET"}) - {"HEAD"}
    return ruled(Rule(method, route.path, None, PUBLIC), route)
