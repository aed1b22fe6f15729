"""Calls that give code another place: `code.replace(co_name="block")` becomes a call of the guest runtime.

A VM makes no code objects of parts, so `code.replace` is refused there. Template engines and the like use it to have
tracebacks name their own files, lines and blocks; that touches no instruction, and native code does it
(`relocated_code` in vmhost/isolation/seal/function_code.c). Calls are told by their keywords: all of them say where
code is from."""

import ast

WHERE = frozenset({"co_filename", "co_firstlineno", "co_name", "co_qualname"})
_REPLACED = "__import__('vmhost.guest.texts', fromlist=['replaced']).replaced"


def gives_a_place(call):
    """Whether the Call is one of `.replace` with keywords of WHERE alone."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "replace" and not call.args
    return is_method and bool(call.keywords) and all(keyword.arg in WHERE for keyword in call.keywords)


def with_places(source, filename):
    """`source` (bytes, str or a syntax tree) as the compiler is to get it: itself where there is no such call."""
    if isinstance(source, ast.AST):
        tree = source
    else:
        text = source if isinstance(source, bytes) else source.encode()
        if b".replace(" not in text or not any(name.encode() in text for name in WHERE):
            return source
        tree = compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and gives_a_place(node)]
    for call in calls:
        call.args = [call.func.value]
        function = ast.parse(_REPLACED, mode="eval").body
        for node in ast.walk(function):
            ast.copy_location(node, call.func)
        call.func = function
    return tree if calls or isinstance(source, ast.AST) else source
