"""Which modules an import with a computed name may ask for, as far as the source shows.

A computed name is described by patterns: texts in which "*" stands for any text. `f"pkg.plugins.{name}"` has the
pattern "pkg.plugins.*", an argument of a function "*". An asterisk of the program's own counts as any text, too.
"""

import ast
import re

_MOST = 64  # alternatives of one expression; more become "*"
_DEEPEST = 6  # names that stand for names
_FIELD = re.compile(r"\{[^{}]*\}")
_CONVERSION = re.compile(r"%(?:\(\w*\))?[-#0 +]*[\d*]*(?:\.[\d*]+)?[a-zA-Z]")
_NAMES_A_MODULE = re.compile(r"\.{0,2}[A-Za-z_]\w*(?:\.\w+)*(?::[\w.]+)?")
ANYTHING = ("*",)
_NOTED = frozenset(
    (ast.Constant, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign)
) | {ast.arg}


class ModuleNames:
    """The texts that the expressions of one module may give. `nodes` are those of its syntax tree; `imported` maps its
    local names to the dotted names that they stand for."""

    def __init__(self, nodes, name, is_package, imported):
        self._name, self._imported = name, imported
        self._package = name if is_package else name.rpartition(".")[0]
        self._values = {}  # name -> expressions that it is bound to; None: something else as well
        self._loops = set()  # the expressions that are iterated over
        self.texts = set()  # texts that may name a module, such as "pkg.part" or "pkg.part:name"
        for node in nodes:
            if type(node) in _NOTED:
                self._note(node)

    def _note(self, node):
        kind = type(node)
        if kind is ast.Constant:
            if isinstance(node.value, str) and len(node.value) < 200 and _NAMES_A_MODULE.fullmatch(node.value):
                self.texts.add(node.value)
        elif kind is ast.Assign:
            for target in node.targets:
                self._bind(target, node.value)
        elif kind is ast.AnnAssign or kind is ast.NamedExpr:
            self._bind(node.target, node.value)
        elif kind is ast.For or kind is ast.AsyncFor or kind is ast.comprehension:
            self._loops.add(node.iter)
            self._bind(node.target, node.iter)
        elif kind is ast.AugAssign:
            self._bind(node.target, None)
        elif kind is ast.arg:
            self._values[node.arg] = None

    def _bind(self, target, value):
        if isinstance(target, ast.Name):
            known = self._values.setdefault(target.id, [])
            if value is None or known is None:
                self._values[target.id] = None
            else:
                known.append(value)
        else:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    self._values[part.id] = None

    def patterns(self, node, depth=0):
        """The patterns of the texts that the expression `node` may give."""
        if depth > _DEEPEST:
            return ANYTHING
        found = tuple(dict.fromkeys(self._patterns(node, depth + 1)))
        return found if len(found) <= _MOST else ANYTHING

    def _patterns(self, node, depth):
        if isinstance(node, ast.Constant):
            return (node.value,) if isinstance(node.value, str) else ANYTHING
        if isinstance(node, ast.JoinedStr):
            return self._joined("", node.values, depth)
        if isinstance(node, ast.FormattedValue):
            plain = node.format_spec is None and node.conversion in (-1, ord("s"))
            return self.patterns(node.value, depth) if plain else ANYTHING
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._joined("", [node.left, node.right], depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return tuple(_CONVERSION.sub("*", each) for each in self.patterns(node.left, depth))
        if isinstance(node, ast.IfExp):
            return self.patterns(node.body, depth) + self.patterns(node.orelse, depth)
        if isinstance(node, ast.BoolOp):
            return tuple(each for value in node.values for each in self.patterns(value, depth))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._of_method(node, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node)
        if isinstance(node, ast.Name):
            return self._of_name(node.id, depth)
        return ANYTHING

    def _joined(self, between, nodes, depth):
        found = [""]
        for number, node in enumerate(nodes):
            parts = self.patterns(node, depth)
            if len(found) * len(parts) > _MOST:
                return ANYTHING
            found = [f"{first}{between if number else ''}{last}" for first in found for last in parts]
        return tuple(found)

    def _of_method(self, node, depth):
        if node.func.attr == "format":
            return tuple(_FIELD.sub("*", each) for each in self.patterns(node.func.value, depth))
        separator = node.func.value
        listed = node.args[0] if len(node.args) == 1 else None
        if (
            node.func.attr == "join"
            and isinstance(separator, ast.Constant)
            and isinstance(listed, (ast.List, ast.Tuple))
        ):
            return self._joined(separator.value, listed.elts, depth)
        return ANYTHING

    def _of_attribute(self, node):
        owner = node.value.id if isinstance(node.value, ast.Name) else None
        if owner == "__spec__":
            return {"name": (self._name,), "parent": (self._package,)}.get(node.attr, ANYTHING)
        if node.attr in ("__name__", "__package__") and owner in self._imported:
            return (self._imported[owner],)
        return ANYTHING

    def _of_name(self, name, depth):
        if name == "__name__":
            return (self._name,)
        if name == "__package__":
            return (self._package,)
        values = self._values.get(name)
        if not values:
            return ANYTHING
        return tuple(each for value in values for each in self._of_value(value, depth))

    def _of_value(self, value, depth):
        if value not in self._loops:
            return self.patterns(value, depth)
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            return tuple(each for item in value.elts for each in self.patterns(item, depth))
        return ANYTHING

    def absolute(self, pattern, package=None):
        """The pattern without leading dots, which stand for the package `package` (its patterns; None: the module's
        own) and those above it; "*" if that leads nowhere."""
        name = pattern.lstrip(".")
        dots = len(pattern) - len(name)
        if not dots:
            return (pattern,)
        found = []
        for base in (self._package,) if package is None else package:
            parts = base.split(".")
            leads = base and "*" not in base and dots <= len(parts)
            found.append(".".join([*parts[: len(parts) - dots + 1], name]) if leads else "*")
        return tuple(found)


def fixed_package(pattern):
    """The package in which all modules of a pattern lie, such as "pkg.plugins" of "pkg.plugins.x*"; "" if none is
    certain."""
    return pattern.partition("*")[0].rpartition(".")[0]


def matcher(pattern):
    """A compiled expression for the names that a pattern describes."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))))
