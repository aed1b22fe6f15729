"""Deferred annotations, PEP 649, without the future import."""
import annotationlib
import typing
from dataclasses import dataclass


class Node:
    next: Node | None
    missing: Undefined
    alias: typing.Annotated["Node", "meta"]

    def link(self, other: Node, *rest: "int | str") -> list[Node]:
        return [self, other]


@dataclass
class Tree:
    left: Tree | None = None
    size: typing.Literal["s", "m"] = "s"


def show():
    out = [sorted(annotationlib.get_annotations(Node, format=annotationlib.Format.FORWARDREF))]
    out.append(annotationlib.get_annotations(Node, format=annotationlib.Format.STRING))
    try:
        Node.__annotations__
    except NameError as error:
        out.append(str(error))
    out.append({k: str(v) for k, v in typing.get_type_hints(Node.link).items()})
    out.append({k: str(v) for k, v in typing.get_type_hints(Tree).items()})
    return out
