"""Class signatures for `dataclasses`, without importing inspect.

`inspect` imports ast, dis and tokenize: 8 ms and 2 MB for one line of documentation in each dataclass. Unusual classes
still go to inspect.
"""

import annotationlib
from types import FunctionType, GenericAlias

_VARIADIC = 0x4 | 0x8  # CO_VARARGS, CO_VARKEYWORDS


def of_class(cls):
    """`str(inspect.signature(cls))`, with the annotations in the FORWARDREF format."""
    init = cls.__dict__.get("__init__")
    if (
        type(init) is FunctionType
        and "__new__" not in cls.__dict__
        and type(cls).__call__ is type.__call__
        and not (init.__code__.co_flags & _VARIADIC or init.__code__.co_posonlyargcount or init.__dict__)
        and not any(hasattr(cls, name) for name in ("__signature__", "__wrapped__", "__partialmethod__"))
    ):
        return _of_init(init)
    import inspect

    return str(inspect.signature(cls, annotation_format=annotationlib.Format.FORWARDREF))


def _of_init(init):
    code = init.__code__
    annotations = annotationlib.get_annotations(init, format=annotationlib.Format.FORWARDREF)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = names[: code.co_argcount]
    values = init.__defaults__ or ()
    defaults = dict(zip(positional[len(positional) - len(values) :], values)) | (init.__kwdefaults__ or {})
    parameters = []
    for index, name in enumerate(names[1:], 1):
        if index == code.co_argcount:
            parameters.append("*")
        if name in annotations:
            text = f"{name}: {_annotation(annotations[name])}"
            parameters.append(f"{text} = {defaults[name]!r}" if name in defaults else text)
        else:
            parameters.append(f"{name}={defaults[name]!r}" if name in defaults else name)
    result = f" -> {_annotation(annotations['return'])}" if "return" in annotations else ""
    return f"({', '.join(parameters)}){result}"


def _annotation(annotation):
    """`inspect.formatannotation(annotation)`."""
    if getattr(annotation, "__module__", None) == "typing":
        import inspect

        return inspect.formatannotation(annotation)
    if isinstance(annotation, GenericAlias):
        return str(annotation)
    if isinstance(annotation, type):
        if annotation.__module__ == "builtins":
            return annotation.__qualname__
        return annotation.__module__ + "." + annotation.__qualname__
    if isinstance(annotation, annotationlib.ForwardRef):
        return annotation.__forward_arg__
    return repr(annotation)


def unwrapped(function):
    """`inspect.unwrap(function)`: the function below its decorators; ValueError where they form a cycle."""
    first, seen = function, {id(function)}
    while not isinstance(function, type) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
        if id(function) in seen:
            raise ValueError(f"wrapper loop when unwrapping {first!r}")
        seen.add(id(function))
    return function
