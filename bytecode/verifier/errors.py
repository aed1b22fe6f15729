"""The verifier's error."""

from ..errors import BundleError


class VerifyError(BundleError):
    """A code object that CPython could not run safely.

    `where` is the bundle and file in the caller's words, `qualname` the function (None: there is no code object yet),
    `offset` the byte offset of the instruction, None if the whole object is wrong.
    """

    def __init__(self, where, qualname, message, offset=None, instruction=None):
        self.where, self.qualname, self.offset, self.instruction = where, qualname, offset, instruction
        location = f"{where}: " if where else ""
        if qualname is not None:
            location += f"function {qualname}"
            if offset is not None:
                location += f" @ offset {offset}" + (f" ({instruction})" if instruction else "")
            location += ": "
        super().__init__(
            f"{location}{message}; the bundle is damaged or was not made by CPython's compiler: compile the task again"
        )
