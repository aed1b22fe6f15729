"""Random Python programs: nested statements of every kind, to see that the verifier accepts what the compiler makes of
them.

    python -m tests.properties.generated_programs --count 20000 [--seed N]

A program follows from its seed. Programs are compiled and verified, never run.
"""

import argparse
import random
import sys
import time
import warnings

from vmhost.bytecode.corrections import compile_corrected
from vmhost.bytecode.verifier import VerifyError, verify

_NAMES = ("a", "b", "c", "d", "self", "x", "y", "_z")


class Program:
    """Writes one program; `text` is its source."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.lines = []
        self.kinds = []  # of the functions around: "def", "async", "class"
        self.loops = 0
        self.budget = self.chance.randrange(5, 40)
        while self.budget > 0:
            self.statement(0, 0)
        self.text = "\n".join(self.lines) + "\n"

    # -- expressions

    def name(self):
        return self.chance.choice(_NAMES)

    def expression(self, depth=0):
        chance = self.chance
        if depth > 2 or chance.random() < 0.35:
            return chance.choice(
                (
                    self.name(),
                    self.name(),
                    self.name(),
                    "1",
                    "257",
                    "-3",
                    "1.5",
                    "'s'",
                    "b'b'",
                    "None",
                    "True",
                    "...",
                    "()",
                )
            )
        e = lambda: self.expression(depth + 1)
        kinds = [
            lambda: (
                f"({e()} {chance.choice(('+', '-', '*', '/', '//', '%', '**', '@', '&', '|', '^', '<<', '>>'))} {e()})"
            ),
            lambda: (
                f"({e()} {chance.choice(('<', '<=', '==', '!=', '>', '>=', 'in', 'not in', 'is', 'is not'))} {e()})"
            ),
            lambda: f"({e()} < {e()} <= {e()})",
            lambda: f"({e()} {chance.choice(('and', 'or'))} {e()})",
            lambda: f"(not {e()})",
            lambda: f"(-{e()})",
            lambda: f"(~{e()})",
            lambda: f"(+{e()})",
            lambda: f"({e()} if {e()} else {e()})",
            lambda: f"{self.name()}({', '.join(self.arguments(depth))})",
            lambda: f"{self.name()}.{self.name()}({', '.join(self.arguments(depth))})",
            lambda: f"{self.name()}.{self.name()}",
            lambda: f"{self.name()}[{e()}]",
            lambda: f"{self.name()}[{e()}:{e()}]",
            lambda: f"{self.name()}[{e()}:{e()}:{e()}, {e()}]",
            lambda: f"[{e()}, *{e()}, {e()}]",
            lambda: f"({e()}, {e()})",
            lambda: f"{{{e()}, {e()}}}",
            lambda: f"{{{e()}: {e()}, **{e()}}}",
            lambda: f"{{*{e()}, {e()}}}",
            lambda: f"f'{{{e()}}}t{{{self.name()}!r:>{{{self.name()}}}}}'",
            lambda: f"t'{{{self.name()}}}t{{{self.name()}!s:x}}'",
            lambda: self.comprehension(depth),
        ]
        if "class" not in self.kinds[-1:]:
            kinds.append(lambda: f"({self.name()} := {e()})" if self.kinds else e())
            kinds.append(lambda: f"(lambda {self.name()}=1, *p, k={e()}, **q: {e()})")
        if self.kinds and self.kinds[-1] in ("def", "async"):
            kinds.append(lambda: f"(yield {e()})")
            if self.kinds[-1] == "def":
                kinds.append(lambda: f"(yield from {e()})")
            else:
                kinds += [lambda: f"(await {e()})"] * 2
        return chance.choice(kinds)()

    def arguments(self, depth):
        kinds = (
            lambda: self.expression(depth + 1),
            lambda: f"*{self.name()}",
            lambda: f"k{self.chance.randrange(99)}={self.expression(depth + 1)}",
            lambda: f"**{self.name()}",
        )
        picked = sorted(self.chance.choices(range(4), (6, 1, 2, 1), k=self.chance.randrange(4)))
        return [kinds[kind]() for kind in picked]

    def comprehension(self, depth):
        chance = self.chance
        saved, self.kinds = (
            self.kinds,
            self.kinds[:-1] + ["class"] if self.kinds else ["class"],
        )  # no walrus, no yield inside
        name, inner = chance.choice("abxyz"), chance.choice("abxyz")
        part = f"for {name} in {self.name()}" + chance.choice(("", f" if {name}", f" for {inner} in {name} if {inner}"))
        value = chance.choice(
            (name, f"(lambda: {name})", f"[{inner} for {inner} in {name}]", f"({name}, {self.expression(depth + 2)})")
        )
        self.kinds = saved
        return chance.choice(
            (
                f"[{value} {part}]",
                f"{{{value} {part}}}",
                f"{{{name}: {value} {part}}}",
                f"any({value} {part})",
                f"tuple({value} {part})",
                f"list({value} {part})",
            )
        )

    # -- statements

    def put(self, indent, text):
        self.lines.append("    " * indent + text)

    def block(self, indent, depth):
        for _ in range(self.chance.randrange(1, 4)):
            self.statement(indent, depth + 1)

    def target(self):
        return self.chance.choice(
            (
                self.name(),
                self.name(),
                f"{self.name()}.{self.name()}",
                f"{self.name()}[{self.name()}]",
                f"{self.name()}, *{self.name()}",
                f"[{self.name()}, ({self.name()}, {self.name()})]",
            )
        )

    def statement(self, indent, depth):
        self.budget -= 1
        chance, kinds = self.chance, self.kinds
        simple = depth > 5 or chance.random() < 0.5
        if simple:
            choices = [
                lambda: f"{self.target()} = {self.expression()}",
                lambda: f"{self.name()} = {self.name()} = {self.expression()}",
                lambda: f"{self.name()} {chance.choice(('+', '-', '*', '|', '@'))}= {self.expression()}",
                lambda: f"{self.name()}[{self.name()}] += {self.expression()}",
                lambda: f"{self.name()}.{self.name()} -= {self.expression()}",
                lambda: self.expression(),
                lambda: f"del {self.name()}",
                lambda: f"del {self.name()}[{self.name()}], {self.name()}.{self.name()}",
                lambda: f"assert {self.expression()}, {self.name()}",
                lambda: "pass",
                lambda: f"raise {self.name()}",
                lambda: f"raise {self.name()} from {self.expression()}",
                lambda: "raise",
                lambda: f"import {self.name()}.m as {self.name()}",
                lambda: f"from {self.name()} import {self.name()} as {self.name()}",
                lambda: f"{self.name()}: {self.name()} = {self.expression(2)}",
            ]
            if kinds and kinds[-1] != "class":
                choices += [
                    lambda: "return",
                    lambda: f"return {self.expression()}" if not self._asynchronous_generator() else "return",
                ]
            if self.loops:
                choices += [lambda: "break", lambda: "continue"]
            self.put(indent, chance.choice(choices)())
            return
        choices = [
            self._if,
            self._while,
            self._for,
            self._try,
            self._with,
            self._def,
            self._class,
            self._match,
            self._group,
        ]
        chance.choice(choices)(indent, depth)

    def _asynchronous_generator(self):
        return self.kinds[-1] == "async"

    def _prefix(self):
        return "async " if self.kinds and self.kinds[-1] == "async" and self.chance.random() < 0.6 else ""

    def _if(self, indent, depth):
        self.put(indent, f"if {self.expression()}:")
        self.block(indent + 1, depth)
        if self.chance.random() < 0.4:
            self.put(indent, f"elif {self.expression()}:")
            self.block(indent + 1, depth)
        if self.chance.random() < 0.5:
            self.put(indent, "else:")
            self.block(indent + 1, depth)

    def _loop(self, indent, depth, head):
        self.put(indent, head)
        self.loops += 1
        self.block(indent + 1, depth)
        self.loops -= 1
        if self.chance.random() < 0.3:
            self.put(indent, "else:")
            self.block(indent + 1, depth)

    def _while(self, indent, depth):
        self._loop(indent, depth, f"while {self.chance.choice(('True', self.expression()))}:")

    def _for(self, indent, depth):
        self._loop(indent, depth, f"{self._prefix()}for {self.target()} in {self.expression()}:")

    def _try(self, indent, depth):
        chance = self.chance
        self.put(indent, "try:")
        self.block(indent + 1, depth)
        handlers = chance.randrange(3)
        for _ in range(handlers):
            self.put(indent, f"except {self.expression(2)}{chance.choice(('', f' as {self.name()}'))}:")
            self.block(indent + 1, depth)
        if handlers and chance.random() < 0.4:
            self.put(indent, "else:")
            self.block(indent + 1, depth)
        if not handlers or chance.random() < 0.4:
            self.put(indent, "finally:")
            saved, self.loops = self.loops, 0  # break out of finally is a warning
            kinds, self.kinds = self.kinds, self.kinds[:-1] + ["class"] if self.kinds else []
            self.block(indent + 1, depth)
            self.loops, self.kinds = saved, kinds

    def _group(self, indent, depth):
        self.put(indent, "try:")
        self.block(indent + 1, depth)
        saved, self.loops = self.loops, 0
        kinds, self.kinds = self.kinds, self.kinds[:-1] + ["class"] if self.kinds else []
        for _ in range(self.chance.randrange(1, 3)):
            self.put(indent, f"except* {self.expression(2)} as {self.name()}:")
            self.block(indent + 1, depth)
        self.loops, self.kinds = saved, kinds

    def _with(self, indent, depth):
        items = ", ".join(
            f"{self.expression(1)}{self.chance.choice(('', f' as {self.name()}'))}"
            for _ in range(self.chance.randrange(1, 3))
        )
        self.put(indent, f"{self._prefix()}with {items}:")
        self.block(indent + 1, depth)

    def _def(self, indent, depth):
        chance = self.chance
        kind = chance.choice(("def", "def", "async"))
        generic = chance.choice(("", "", "[T]", "[T: int, *U, **V]", "[T = int]"))
        names = chance.sample(_NAMES, chance.randrange(4))
        arguments = ", ".join(
            [*names, *(["e=1"] if chance.random() < 0.5 else []), *(["*", "k=2"] if chance.random() < 0.4 else [])]
        )
        if chance.random() < 0.2:
            self.put(indent, f"@{self.name()}")
        self.put(indent, f"{'async ' if kind == 'async' else ''}def {chance.choice('fgh')}{generic}({arguments}):")
        saved, self.loops = self.loops, 0
        if self.kinds and self.kinds[-1] != "class" and chance.random() < 0.4:
            fresh = [name for name in _NAMES if name not in names]
            self.put(indent + 1, f"try: nonlocal_({fresh[0]})\n{'    ' * (indent + 1)}except E: pass")
        self.kinds.append(kind)
        self.block(indent + 1, depth)
        self.kinds.pop()
        self.loops = saved

    def _class(self, indent, depth):
        generic = self.chance.choice(("", "", "[T]"))
        self.put(indent, f"class {self.chance.choice('ABC')}{generic}({self.name()}, k={self.expression(2)}):")
        saved, self.loops = self.loops, 0
        self.kinds.append("class")
        self.block(indent + 1, depth)
        if self.chance.random() < 0.5:
            self.put(
                indent + 1,
                "def __init__(self): super().__init__(); self.x = __class__; [self for self in (lambda: self)()]",
            )
        self.kinds.pop()
        self.loops = saved

    def _match(self, indent, depth):
        self.put(indent, f"match {self.expression()}:")
        patterns = [
            "1 | 2",
            "'s' | None",
            "[a, *b]",
            "(x, y)",
            "{'k': c, **d}",
            "A(a, x=b)",
            "A.b",
            "str() as y",
            "[{'k': [a, _]}, *_]",
            "-1.5",
        ]
        for pattern in self.chance.sample(patterns, self.chance.randrange(1, 4)):
            guard = f" if {self.expression(2)}" if self.chance.random() < 0.3 else ""
            self.put(indent + 1, f"case {pattern}{guard}:")
            self.block(indent + 2, depth)


def measure(seed, count):
    """(programs compiled, programs that were no valid Python, [(program's seed, refusal)])."""
    compiled, invalid, refusals = 0, 0, []
    for index in range(count):
        each = f"{seed}:{index}"
        text = Program(each).text
        try:
            with warnings.catch_warnings(action="ignore"):
                code = compile_corrected(text, "generated.py", index % 3)
        except SyntaxError, RecursionError:
            invalid += 1
            continue
        compiled += 1
        try:
            verify(code)
        except VerifyError as error:
            refusals.append((each, str(error)))
    return compiled, invalid, refusals


def main():
    parser = argparse.ArgumentParser(description="Compiles random programs and verifies what comes out.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", default="20261121")
    parser.add_argument("--show", help="print the program of this seed")
    options = parser.parse_args()
    if options.show:
        print(Program(options.show).text)
        return 0
    begun = time.perf_counter()
    compiled, invalid, refusals = measure(options.seed, options.count)
    print(
        f"seed {options.seed}: {compiled} programs verified, {len(refusals)} refused, {invalid} were no valid Python, "
        f"{time.perf_counter() - begun:.1f} s"
    )
    for each, message in refusals[:20]:
        print("   ", each, message)
    return 1 if refusals else 0


if __name__ == "__main__":
    sys.exit(main())
