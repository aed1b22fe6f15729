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
