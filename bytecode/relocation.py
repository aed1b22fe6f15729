"""Calls that relocate code: `code.replace(co_name="block")` becomes a call of the guest runtime.

A VM makes no code objects from parts, so `code.replace` is refused there. Template engines and others use it so that
tracebacks show their own files, lines and blocks. That changes no instruction, so native code does it
(`relocated_code` in vmhost/isolation/seal/function_code.c). Such calls are recognised by their keywords: all of them
say where code is from."""

import ast

WHERE = frozenset({"co_filename", "co_firstlineno", "co_name", "co_qualname"})
_REPLACED = "__import__('vmhost.guest.texts', fromlist=['replaced']).replaced"


def gives_a_place(call):
    """Is the Call one of `.replace` with only keywords of WHERE?"""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "replace" and not call.args
    return is_method and bool(call.keywords) and all(keyword.arg in WHERE for keyword in call.keywords)


def with_places(source, filename, tree=None):
    """The compiler's input for `source` (bytes or str) with syntax tree `tree`, if the caller has one: the tree with
    such calls replaced; `source` itself if there are none and no tree was given."""
    text = source if isinstance(source, bytes) else source.encode()
    if b".replace(" not in text or not any(name.encode() in text for name in WHERE):
        return source if tree is None else tree  # search the text first: walking the tree takes as long as compiling
    parsed = tree or compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    calls = [node for node in ast.walk(parsed) if isinstance(node, ast.Call) and gives_a_place(node)]
    for call in calls:
        call.args = [call.func.value]
        function = ast.parse(_REPLACED, mode="eval").body
        for node in ast.walk(function):
            ast.copy_location(node, call.func)
        call.func = function
    return parsed if calls or tree is not None else source
