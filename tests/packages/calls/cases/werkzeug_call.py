# requires: werkzeug
from werkzeug.routing import Map, Rule
from werkzeug.security import check_password_hash, generate_password_hash

URLS = Map([Rule("/blog/<int:year>/<slug>", endpoint="post"), Rule("/", endpoint="home")])


def run(value):
    urls = URLS.bind("example.org")
    hashed = generate_password_hash("secret", method="pbkdf2:sha256:1000")
    return [
        list(urls.match("/blog/2026/hello")),
        urls.build("post", {"year": 2025, "slug": "x"}),
        check_password_hash(hashed, "secret"),
    ]
