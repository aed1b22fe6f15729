"""try in all its forms, raise from, exception groups, bare raise, nested handlers."""


def divide(a, b):
    try:
        return a // b
    except ZeroDivisionError as error:
        return str(error)
    except TypeError, ValueError:
        return None
    else:
        return 0
    finally:
        a = b = None


def again():
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise
        finally:
            x = 1
    except LookupError as error:
        return error.args, x


def chained():
    try:
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        return type(error.__cause__).__name__


def group(kind):
    caught = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), ExceptionGroup("h", [KeyError(3)])])
    except* ValueError as errors:
        caught.append(len(errors.exceptions))
    except* TypeError, KeyError:
        caught.append("t")
    return caught


def group_again():
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), OSError(2)])
        except* ValueError:
            raise KeyError("inside")
    except BaseException as error:
        return type(error).__name__


def loop(n):
    out = []
    for i in range(n if isinstance(n, int) else 4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            out.append(1 / i)
        except ZeroDivisionError:
            out.append(None)
        finally:
            out.append("f")
    else:
        out.append("else")
    while True:
        try:
            return out
        finally:
            out = out[:]


def checks(x):
    assert x is not None, "none"
    return x
