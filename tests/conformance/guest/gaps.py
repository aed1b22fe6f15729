"""Replaces a module that a VM does not have in a test module: any use of it raises an error that says so."""


class AbsentError(ImportError, NotImplementedError):
    """An attribute of a gap is absent: tests expect either error."""


class Gap:
    """The module `name`, or something in it, which is absent for the reason `reason`: reading it gives more of the
    same, so that a test module can be imported; calling it is AbsentError. Exceptions in it are exceptions that nobody
    raises."""

    def __init__(self, name, reason):
        self._name, self._reason = name, reason

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if attribute.endswith(("Error", "Exception", "Expired")):
            return type(attribute, (Exception,), {})
        return Gap(f"{self._name}.{attribute}", self._reason)

    def __call__(self, *_, **__):
        if self._name.startswith("doctest."):
            import unittest

            return unittest.TestSuite()  # a VM has no doctest; the module's other tests are loaded all the same
        raise AbsentError(f"{self._name}: {self._reason}")

    def __mro_entries__(self, bases):
        return ()

    def __bool__(self):
        return False
