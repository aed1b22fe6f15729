"""Coroutines, asynchronous generators, async with and async for."""


class Later:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield self.value
        return self.value


class Area:
    async def __aenter__(self):
        await Later(1)
        return self

    async def __aexit__(self, kind, error, trace):
        await Later(2)
        return kind is KeyError


async def numbers(n):
    for i in range(n):
        await Later(i)
        yield i


async def main(n):
    out = []
    async with Area() as area:
        async for x in numbers(3):
            out.append((area is not None, x))
    try:
        async with Area():
            raise KeyError(n)
    finally:
        out.append([y async for y in numbers(2)])
    return out, [await Later(z) for z in range(2)]


def run(coroutine):
    steps = 0
    try:
        while steps < 50:
            coroutine.send(None)
            steps += 1
    except StopIteration as stop:
        return stop.value
    coroutine.close()


def drive():
    return run(main(1))
