"""Calling functions of the application from threads and loops of vmhost, which outlive whatever these raise.

`call` and `awaited` raise what the function raised if it is an Exception that has a text. Everything else, such as the
SystemExit of `sys.exit()`, a CancelledError that nobody asked for, or an error whose `__str__` fails, becomes a
CallbackError, whose text can be logged and sent. Two things pass, as they are meant for the caller: Ctrl-C on the main
thread, and the cancellation of the task that awaits.
"""

import inspect
import threading

from vmhost.errors import VMHostError


class CallbackError(VMHostError):
    """A function of the application ended by something that would end the thread or the loop that called it."""


def is_async(function):
    """Whether a call of the function has to be awaited."""
    if not callable(function):
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)


def call(function, *given):
    """The function's result. CallbackError if that would have to be awaited."""
    try:
        result = function(*given)
    except BaseException as error:
        if (isinstance(error, Exception) and _text(error) is not None) or _is_ctrl_c(error):
            raise
        raise _ended_by(error) from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        raise CallbackError(f"{name} returned an awaitable, which is not awaited here; expected a plain function")
    return result


async def awaited(awaitable):
    """The result of a coroutine, or of another awaitable."""
    try:
        return await awaitable
    except BaseException as error:
        if isinstance(error, GeneratorExit) or _is_ctrl_c(error):  # GeneratorExit: somebody closes us
            raise
        if isinstance(error, Exception) and _text(error) is not None:
            raise
        import asyncio  # late: who only calls plain functions does without it

        if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():
            raise
        raise _ended_by(error) from error


def guarded_task(loop, coroutine, **settings):
    """A task factory (`loop.set_task_factory`) for loops of vmhost: tasks that the application makes there, with
    `asyncio.gather` say, do not end the loop."""
    import asyncio

    return asyncio.Task(awaited(coroutine), loop=loop, **settings)


def _is_ctrl_c(error):
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def error_text(error):
    """The error's type and text. Does not fail, whatever the error's own code does."""
    text = _text(error)
    return f"{type(error).__name__}: {'(its text cannot be made)' if text is None else text}"


def _text(error):
    """str(error), which is code of the application; None where it fails."""
    try:
        return str(error)
    except BaseException as failure:
        if _is_ctrl_c(failure):
            raise
        return None


def _ended_by(error):
    return CallbackError(f"the function ended by {error_text(error)}".removesuffix(": "))
