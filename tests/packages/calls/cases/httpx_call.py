# requires: httpx
import httpx


def run(value):
    def answer(request):
        return httpx.Response(200, json={"path": request.url.path, "q": dict(request.url.params)})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="https://example.org") as client:
        return client.get("/a", params={"x": "ä"}).json()
