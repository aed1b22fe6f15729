"""Floating-point warnings: the engine has none. `errstate` exists so that code which silences them runs."""


class errstate:
    """Accepts "ignore" for every kind and does nothing; raises if a warning or an error is requested."""

    def __init__(self, *, call=None, all=None, divide=None, over=None, under=None, invalid=None):
        for name, mode in (("all", all), ("divide", divide), ("over", over), ("under", under), ("invalid", invalid)):
            if mode not in (None, "ignore"):
                raise ValueError(
                    f"errstate({name}={mode!r}): the engine gives no floating-point warnings; only 'ignore' is accepted"
                )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __call__(self, function):
        return function


def seterr(all=None, divide=None, over=None, under=None, invalid=None):
    errstate(all=all, divide=divide, over=over, under=under, invalid=invalid)
    return geterr()


def geterr():
    return {"divide": "ignore", "over": "ignore", "under": "ignore", "invalid": "ignore"}
