# requires: anyio
import anyio


async def double(x):
    await anyio.sleep(0)
    return 2 * x


async def both():
    found = []
    async with anyio.create_task_group() as group:
        for number in (1, 2):

            async def work(number=number):
                found.append(await double(number))

            group.start_soon(work)
    with anyio.move_on_after(5) as scope:
        await anyio.lowlevel.checkpoint()
    return sorted(found), scope.cancelled_caught


def run(value):
    return anyio.run(both)
