# requires: starlette
import asyncio

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


async def page(request):
    return JSONResponse({"hello": request.path_params["name"], "q": dict(request.query_params)})


def run(value):
    app = Starlette(routes=[Route("/hello/{name}", page)])
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/hello/world",
        "query_string": b"a=1",
        "headers": [],
        "http_version": "1.1",
        "root_path": "",
        "scheme": "http",
        "server": ("x", 80),
        "client": ("y", 1),
    }
    asyncio.run(app(scope, receive, send))
    return [sent[0]["status"], sent[1]["body"].decode()]
