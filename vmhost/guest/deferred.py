"""Modules that are imported when they are first used: for what the standard library needs seldom and imports always."""

import sys


class Module:
    """Stands for a module in another's globals."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, attribute):
        __import__(self.__name__)
        value = getattr(sys.modules[self.__name__], attribute)
        setattr(self, attribute, value)
        return value


class Result:
    """Stands for what a function of a module gives, which is called when the result is first used."""

    def __init__(self, module, function, *arguments):
        self._made_by = module, function, arguments

    def __getattr__(self, attribute):
        module, function, arguments = self._made_by
        __import__(module)
        return getattr(getattr(sys.modules[module], function)(*arguments), attribute)
