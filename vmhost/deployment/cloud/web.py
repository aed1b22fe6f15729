"""The platform as a Starlette application, which any server can mount: git, files, devices, and the API for people.

/git/NAME                smart HTTP (git_http.py)
/files/ab/abcdef...      what devices pull, with ranges; a static server may take its place
/api/v1/device/...       devices: enrol, check
/debug, /debug/api       debugging a device, by a link (debugging.py)
/api/v1/openapi.json     the API's description (openapi.py)
/api/v1/...              people and programs, with tokens (`Authorization: Bearer`)
"""

import contextlib
import json
import re
import string
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from vmhost.access import ROLES, AccessDeniedError, AccessError, RateLimit
from vmhost.cohorts import cohort_of
from vmhost.deployment.artifacts import is_digest
from vmhost.deployment.cloud import openapi
from vmhost.deployment.cloud.audience import Audience, Facts
from vmhost.deployment.cloud.git_http import GitServer
from vmhost.deployment.cloud.plan import WHOLE_FLEET, Plan
from vmhost.deployment.errors import DeploymentError, MissingError, RefusedError
from vmhost.operations.debugging.pages import other_end
from vmhost.stores import StoreError

_HERE = Path(__file__).parent
MAX_BODY_BYTES = 1 << 20
MAX_FILE_BYTES = 256 << 20
_METADATA = re.compile(r"timestamp\.json|[0-9]{1,9}\.[A-Za-z0-9_-]{1,80}\.json")
_PAGE = (
    ("/page.js", "page.js", "text/javascript"),
    ("/page_shared.js", "page_shared.js", "text/javascript"),
    ("/page_fleet.js", "page_fleet.js", "text/javascript"),
    ("/page.css", "page.css", "text/css"),
)
_LINKS = (
    ("/", "page", "Releases", '<a href="fleet">Fleet</a>'),
    ("/fleet", "page_fleet", "Fleet", '<a href="./">Releases</a>'),
)
ACTIONS = ("pause", "resume", "halt", "roll_back", "next", "cancel")


def application(platform, *, requests_per_s=50.0, burst=200):
    """The ASGI application over a Platform, which it neither opens nor closes. The rate limit is per caller."""
    limit = RateLimit(requests_per_s, burst)
    api = _Api(platform, limit)
    return Starlette(
        routes=[
            Mount("/git", app=GitServer(platform, limit)),
            *(Route(path, _page((_HERE / name).read_bytes(), kind)) for path, name, kind in _PAGE),
            *(Route(path, _page(_framed(*of), "text/html")) for path, *of in _LINKS),
            Route("/files/{start}/{digest}", api.file, methods=["GET", "HEAD"]),
            Route("/exclusive/{digest}", api.exclusive, methods=["GET", "HEAD"]),
            Route("/api/v1/files", api.add_file, methods=["POST"]),
            Route("/keys/bundles.pub", api.bundle_key, methods=["GET"]),
            Route("/metadata/{name}", api.metadata, methods=["GET", "HEAD"]),
            Route("/api/v1/openapi.json", _openapi, methods=["GET"]),
            Route("/api/v1/device/enrol", api.enrol, methods=["POST"]),
            Route("/api/v1/device/check", api.of_device("check"), methods=["POST"]),
            Route("/api/v1/device/report", api.of_device("take_report"), methods=["POST"]),
            Route("/api/v1/device/crash", api.of_device("take_crash"), methods=["POST"]),
            Route("/keys/debug.pub", api.debug_key, methods=["GET"]),
            *other_end(api.debug),
            *api.routes(),
        ]
    )


async def _openapi(request):
    return JSONResponse(openapi.document())


def _framed(name, heading, link):
    """A page in the common frame."""
    page, script = (_HERE / f"{name}.html").read_text(), f'<script src="{name}.js"></script>'
    frame = string.Template((_HERE / "page_frame.html").read_text())
    parts = {"title": heading.lower(), "heading": heading, "link": link, "page": page, "script": script}
    return frame.substitute(parts).encode()


def _page(data, kind):
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

    async def page(request):
        return Response(data, media_type=kind, headers=headers)

    return page


class _Api:
    def __init__(self, platform, limit):
        self._platform, self._limit = platform, limit

    # ---- devices

    async def file(self, request):
        digest = request.path_params["digest"]
        if not is_digest(digest) or digest[:2] != request.path_params["start"]:
            return _failure(404, "no such file")
        path = self._platform.files.path(digest)
        if not await run_in_threadpool(path.exists):
            return _failure(404, "no such file")
        headers = {"cache-control": "public, max-age=31536000, immutable", "etag": f'"{digest}"'}
        return FileResponse(path, media_type="application/octet-stream", headers=headers)

    async def exclusive(self, request):
        digest, query = request.path_params["digest"], request.query_params
        given = [query.get(name, "") for name in ("device", "until", "ticket")]
        path = None
        if is_digest(digest):
            path = await run_in_threadpool(self._platform.task_files.open_by_ticket, digest, *given)
        if path is None:
            return _failure(404, "no such file")
        return FileResponse(path, media_type="application/octet-stream", headers={"cache-control": "private, no-store"})

    async def add_file(self, request):
        """The request's body is the file; the query has its attributes."""
        query = request.query_params

        async def work(data):
            def act():
                identity = self._identify(request)
                self._may_release(identity, query.get("task"))
                try:
                    audience = json.loads(query.get("audience", "{}"))
                except ValueError as error:
                    raise RefusedError(f"audience: not JSON: {error}") from None
                what = (query.get("task"), query.get("name"), query.get("kind", "shared"))
                return {"id": self._platform.add_file(*what, data, audience, identity.name)}

            return await run_in_threadpool(act)

        return await self._answer(request, work, _bytes)

    async def bundle_key(self, request):
        return FileResponse(self._platform.folder / "keys" / "bundles.pub", media_type="text/plain")

    async def debug_key(self, request):
        return PlainTextResponse(self._platform.debugging.public)

    async def debug(self, request, body):
        """A request from a debugging client, identified by its link; it is relayed to the device."""
        peer = request.client.host if request.client else ""
        return await run_in_threadpool(self._platform.debugging.answer, body, peer)

    async def metadata(self, request):
        name = request.path_params["name"]
        path = self._platform.metadata.folder / name
        if not _METADATA.fullmatch(name) or not await run_in_threadpool(path.exists):
            return _failure(404, "no such file")
        return FileResponse(path, media_type="application/json", headers={"cache-control": "no-cache"})

    async def enrol(self, request):
        check = openapi.checker("POST", "/device/enrol")

        async def work(body):
            identity = await run_in_threadpool(self._identify, request)
            identity.must("enrol")
            check(body)
            await run_in_threadpool(self._platform.enrol, identity, body.get("device"), body.get("secret"))
            return {"device": body["device"]}

        return await self._answer(request, work)

    def of_device(self, name):
        """The endpoint for the platform's method `name(device, secret, body)`."""

        async def endpoint(request):
            async def work(body):
                device = request.headers.get("x-vmhost-device", "")
                # Counted by address too: others must not use up the device's requests.
                self._count(f"device {device} from {_address(request)}")
                return await run_in_threadpool(getattr(self._platform, name), device, _bearer(request), body) or {}

            return await self._answer(request, work)

        return endpoint

    # ---- the API for people

    def routes(self):
        """The routes: (method, path, scope, function of (identity, parts of the path, query, body))."""
        table = (
            ("GET", "/whoami", None, self._whoami),
            ("GET", "/overview", "read", self._overview),
            ("GET", "/repositories", "read", self._repositories),
            ("POST", "/repositories", "admin", self._add_repository),
            ("GET", "/repositories/{name}/signing", "read", self._signing),
            ("POST", "/repositories/{name}/signatures", "release", self._sign),
            ("GET", "/versions", "read", self._versions),
            ("POST", "/forgive", "release", self._forgive),
            ("GET", "/releases", "read", self._releases),
            ("POST", "/releases", "release", self._start),
            ("GET", "/releases/{release:int}", "read", self._release),
            ("GET", "/releases/{release:int}/devices", "read", self._release_devices),
            ("POST", "/releases/{release:int}/retry", "release", self._retry),
            ("POST", "/releases/{release:int}/{event}", "release", self._act),
            ("POST", "/ask", "read", self._ask),
            ("GET", "/stuck", "read", self._stuck),
            ("GET", "/history", "read", self._history),
            ("GET", "/files", "read", self._files),
            ("DELETE", "/files/{file:int}", "release", self._remove_file),
            ("GET", "/devices", "read", self._devices),
            ("GET", "/devices/{device}", "read", self._device),
            ("DELETE", "/devices/{device}", "admin", self._forget),
            ("GET", "/fleet", "read", self._fleet),
            ("GET", "/fleet/crashes/{device}/{crash}", "read", self._fleet_crash),
            ("GET", "/fleet/alerts", "read", self._alerts),
            ("PUT", "/fleet/rules", "admin", self._set_rules),
            ("GET", "/debug/links", "debug", self._debug_links),
            ("POST", "/debug/links", "debug", self._make_debug_link),
            ("DELETE", "/debug/links/{link}", "debug", self._revoke_debug_link),
            ("GET", "/cohorts", "read", self._cohorts),
            ("PUT", "/cohorts/{cohort}", "release", self._set_cohort),
            ("GET", "/accounts", "admin", self._accounts),
            ("POST", "/accounts", "admin", self._add_account),
            ("PATCH", "/accounts/{name}", "admin", self._change_account),
            ("POST", "/tokens", "admin", self._add_token),
            ("DELETE", "/tokens/{token}", "admin", self._revoke),
            ("GET", "/audit", "admin", self._audit),
        )
        return [
            Route(f"/api/v1{path}", self._endpoint(scope, function, openapi.checker(method, path)), methods=[method])
            for method, path, scope, function in table
        ]

    def _endpoint(self, scope, function, check):
        async def endpoint(request):
            async def work(body):
                def act():
                    identity = self._identify(request)
                    if scope is not None:
                        identity.must_somewhere(scope)  # `function` checks for which repository
                    check(body)
                    self._platform.releases.refresh()
                    return function(identity, request.path_params, request.query_params, body)

                return await run_in_threadpool(act)

            return await self._answer(request, work)

        return endpoint

    def _identify(self, request):
        identity = self._platform.access.identify(_bearer(request))
        self._count(f"account {identity.name}")
        return identity

    def _count(self, who):
        wait_s = self._limit.wait_s(who)
        if wait_s:
            raise _TooOftenError(wait_s)

    async def _answer(self, request, work, read=None):
        """The result of `work(body)` as JSON, or its failure."""
        try:
            return JSONResponse(await work(await (read or _body)(request)))
        except _TooOftenError as error:
            seconds = str(int(error.wait_s) + 1)
            return _failure(429, "too many requests; ask less often", {"retry-after": seconds})
        except AccessDeniedError as error:
            # Slow down guessing, without affecting holders of a token at the same address.
            if not error.known and (wait_s := self._limit.wait_s(f"unknown from {_address(request)}")):
                return _failure(429, "too many wrong tokens", {"retry-after": str(int(wait_s) + 1)})
            return _failure(403 if error.known else 401, str(error))
        except MissingError as error:
            return _failure(404, str(error))
        except (DeploymentError, AccessError) as error:
            return _failure(409 if isinstance(error, RefusedError) else 400, str(error))
        except UnicodeEncodeError:
            return _failure(400, "expected text in Unicode, got half of a surrogate pair, such as \\ud800 alone")
        except StoreError as error:
            return _failure(503, str(error))

    def _whoami(self, identity, parts, query, body):
        return {"name": identity.name, "role": identity.role, "scopes": list(identity.scopes)}

    def _overview(self, identity, parts, query, body):
        releases = self._platform.releases
        with contextlib.ExitStack() as stack:
            stack.enter_context(releases.database.lock)
            newest = {release.task: release for release in releases.releases.values() if release.state == "done"}
            shown = [
                release.plain()
                for release in reversed(list(releases.releases.values()))
                if release.state in ("queued", "running", "paused", "halted") or release is newest.get(release.task)
            ]
            tasks = sorted({version.task for version in releases.versions.values()})
        waiting = [
            {
                "repository": each["repository"],
                "threshold": each["threshold"],
                "signed": len(each["waiting"]["signed_by"]),
                "added": each["waiting"]["added"],
                "removed": each["waiting"]["removed"],
            }
            for each in self._platform.metadata.waiting()
        ]
        return {"devices": self._platform.devices.count(), "tasks": tasks, "releases": shown, "waiting": waiting}

    def _repositories(self, identity, parts, query, body):
        return {"repositories": self._platform.repositories.names()}

    def _add_repository(self, identity, parts, query, body):
        self._platform.add_repository(body.get("name"), identity.name)
        return {"name": body["name"]}

    def _signing(self, identity, parts, query, body):
        self._must_be_repository(parts["name"])
        return {"repository": parts["name"]} | self._platform.metadata.signing(parts["name"])

    def _sign(self, identity, parts, query, body):
        identity.must("release", parts["name"])
        self._must_be_repository(parts["name"])
        listed = self._platform.sign(parts["name"], body["keyid"], body["signature"], identity.name)
        names = [] if listed is None else [f"{version.task} {version.version}" for version in listed]
        return {"repository": parts["name"], "complete": listed is not None, "listed": names}

    def _must_be_repository(self, name):
        if name not in self._platform.repositories.names():
            raise MissingError(f"{name}: there is no such repository")

    def _versions(self, identity, parts, query, body):
        task = query.get("task")
        return {
            "versions": [
                {
                    "task": version.task,
                    "version": version.version,
                    "commit": version.commit,
                    "who": version.who,
                    "time_ms": version.time_ms,
                    "bad": version.bad,
                    "self_test": version.proof is not None,
                    "bundles": {
                        target: {"digest": digest, "size": size} for target, (digest, size) in version.bundles.items()
                    },
                }
                for version in list(self._platform.releases.versions.values())
                if task in (None, version.task)
            ]
        }

    def _forgive(self, identity, parts, query, body):
        self._may_release(identity, body.get("task"))
        self._platform.releases.forgive(body.get("task"), body.get("version"), identity.name, _why(body))
        return {"task": body["task"], "version": body["version"]}

    def _releases(self, identity, parts, query, body):
        engine = self._platform.releases
        with engine.database.lock:
            task = query.get("task")
            return {
                "releases": [
                    each.plain() for each in reversed(list(engine.releases.values())) if task in (None, each.task)
                ][: _limit(query)]
            }

    def _start(self, identity, parts, query, body):
        task = body.get("task")
        self._may_release(identity, task)
        plan = Plan.of(body.get("plan") or WHOLE_FLEET, "plan")
        release = self._platform.releases.start(
            task, body.get("version"), plan, identity.name, _why(body), body.get("priority")
        )
        self._platform.access.note(identity.name, "release", f"{task} {body['version']}", release=release.id)
        return release.plain()

    def _may_release(self, identity, task):
        identity.must("release", str(task).partition("/")[0])

    def _release(self, identity, parts, query, body):
        with self._platform.database.lock:  # only committed state is shown
            return self._platform.releases.release(parts["release"]).plain()

    def _release_devices(self, identity, parts, query, body):
        state = query.get("state")
        return {"devices": self._platform.releases.devices_of(parts["release"], state, _limit(query))}

    def _retry(self, identity, parts, query, body):
        self._may_release(identity, self._platform.releases.release(parts["release"]).task)
        self._platform.releases.retry(str(body.get("device")), parts["release"], identity.name)
        return {"device": body["device"]}

    def _act(self, identity, parts, query, body):
        engine, event = self._platform.releases, parts["event"]
        if event not in ACTIONS:
            raise MissingError(f"{event}: expected one of {', '.join(ACTIONS)}")
        self._may_release(identity, engine.release(parts["release"]).task)
        release = engine.act(parts["release"], event, identity.name, _why(body))
        self._platform.access.note(
            identity.name, event, f"{release.task} {release.version.version}", release=release.id, why=_why(body)
        )
        return release.plain()

    def _ask(self, identity, parts, query, body):
        """The known devices in an audience, their number, and why the others are not: a check before using it."""
        audience, task = Audience(body.get("audience")), str(body.get("task", ""))
        devices, after, matching, reasons = self._platform.devices, "", [], {}
        asked = body.get("device")
        number = count = 0
        with self._platform.database.reader() as connection:
            while page := devices.list(after=after, limit=1000):
                for each in page:
                    number += 1
                    name = each["device"]
                    about = Facts(name, each["facts"], cohort_of(task, name), devices.named(connection, name))
                    why_not = audience.why_not(about)
                    if why_not is None:
                        count += 1
                        matching += [name] if len(matching) < _limit(query) else []
                    if name == asked or (asked is None and why_not is not None and len(reasons) < _limit(query)):
                        reasons[name] = why_not or "it is in the audience"
                after = page[-1]["device"]
        return {"known": number, "matching": count, "devices": matching, "reasons": reasons}

    def _debug_links(self, identity, parts, query, body):
        return {"links": self._platform.debugging.links(_limit(query))}

    def _make_debug_link(self, identity, parts, query, body):
        device = body["device"]
        self._platform.devices.get(device)
        given = (body["scopes"], body["valid_s"], body["address"], body.get("note", ""))
        link = self._platform.debugging.make(identity.name, device, *given)
        return {"link": link.text, "id": link.id, "scopes": list(link.scopes), "expires_s": link.expires_s}

    def _revoke_debug_link(self, identity, parts, query, body):
        return self._platform.debugging.revoke(parts["link"], identity.name)

    def _files(self, identity, parts, query, body):
        return {"files": self._platform.task_files.list(query.get("task"))}

    def _remove_file(self, identity, parts, query, body):
        self._may_release(identity, self._platform.task_files.task_of(parts["file"]))
        self._platform.remove_file(parts["file"], identity.name)
        return {"id": parts["file"]}

    def _stuck(self, identity, parts, query, body):
        return {"devices": self._platform.stuck(_limit(query))}

    def _history(self, identity, parts, query, body):
        return {"history": self._platform.releases.history(query.get("task"), _limit(query))}

    def _devices(self, identity, parts, query, body):
        return {"devices": self._platform.devices.list(after=query.get("after", ""), limit=_limit(query))}

    def _device(self, identity, parts, query, body):
        """All that is known of one device, and why it has or lacks each release."""
        known = self._platform.devices.get(parts["device"])
        engine, device = self._platform.releases, parts["device"]
        with engine.database.lock, self._platform.database.reader() as connection:
            named = self._platform.devices.named(connection, device)
            rows = connection.execute(
                "SELECT release, state, reason, since_ms FROM deploy_assignments WHERE device = ?", (device,)
            )
            mine = {release: rest for release, *rest in rows}
            releases = []
            for release in reversed(list(engine.releases.values())):
                about = Facts(device, known["facts"], cohort_of(release.task, device), named)
                state, reason, since_ms = mine.get(release.id, (None, "", None))
                releases.append(
                    {
                        "release": release.id,
                        "task": release.task,
                        "version": release.version.version,
                        "state": state,
                        "reason": reason,
                        "since_ms": since_ms,
                        "why_not": engine.why_not(release, about, state),
                    }
                )
        return known | {"cohorts": sorted(named), "releases": releases[: _limit(query)]}

    def _forget(self, identity, parts, query, body):
        self._platform.devices.forget(parts["device"])
        self._platform.access.note(identity.name, "device forgotten", parts["device"])
        return {"device": parts["device"]}

    def _fleet(self, identity, parts, query, body):
        """What devices reported in the last `hours`."""
        fleet, may, hours = self._platform.fleet, _may_see(identity), _hours(query)
        return {
            "hours": hours,
            "adoption": fleet.adoption(may),
            "sums": fleet.sums(hours, may=may)[: _limit(query)],
            "crashes": fleet.crashes(hours, may, _limit(query)),
        }

    def _fleet_crash(self, identity, parts, query, body):
        return self._platform.fleet.crash(parts["device"], parts["crash"], _may_see(identity))

    def _alerts(self, identity, parts, query, body):
        found = {"alerts": self._platform.alerts.list(_may_see(identity), _limit(query))}
        if identity.may("admin"):  # the webhook's address may have a secret
            found["rules"] = self._platform.alerts.rules()
        return found

    def _set_rules(self, identity, parts, query, body):
        names = self._platform.alerts.set_rules(body.get("text"), identity.name)
        self._platform.access.note(identity.name, "alert rules set", "fleet", rules=len(names))
        return {"rules": names}

    def _cohorts(self, identity, parts, query, body):
        return {"cohorts": self._platform.devices.cohorts()}

    def _set_cohort(self, identity, parts, query, body):
        identity.must("release")  # named cohorts are shared by all repositories
        devices = body.get("devices")
        if not isinstance(devices, list):
            raise RefusedError("devices: expected a list of names")
        self._platform.devices.set_cohort(parts["cohort"], devices)
        self._platform.releases.announce()
        self._platform.access.note(identity.name, "cohort set", parts["cohort"], devices=len(devices))
        return {"cohort": parts["cohort"], "devices": len(devices)}

    def _accounts(self, identity, parts, query, body):
        return {"accounts": self._platform.access.accounts(), "roles": ROLES}

    def _add_account(self, identity, parts, query, body):
        access = self._platform.access
        access.add_account(body.get("name"), body.get("role"), identity.name)
        return {"name": body["name"], "token": access.add_token(body["name"], identity.name, label="first")}

    def _change_account(self, identity, parts, query, body):
        self._platform.access.change_account(
            parts["name"], identity.name, role=body.get("role"), disabled=body.get("disabled")
        )
        return {"name": parts["name"]}

    def _add_token(self, identity, parts, query, body):
        token = self._platform.access.add_token(
            str(body.get("account")),
            identity.name,
            scopes=body.get("scopes"),
            label=str(body.get("label", "")),
            expires_s=body.get("expires_s"),
        )
        return {"account": body["account"], "token": token}

    def _revoke(self, identity, parts, query, body):
        self._platform.access.revoke_token(parts["token"], identity.name)
        return {"token": parts["token"]}

    def _audit(self, identity, parts, query, body):
        return {"audit": self._platform.access.audit(subject=query.get("subject"), limit=_limit(query))}


class _TooOftenError(Exception):
    def __init__(self, wait_s):
        super().__init__(wait_s)
        self.wait_s = wait_s


async def _bytes(request):
    """The request's bytes; RefusedError beyond MAX_FILE_BYTES."""
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_FILE_BYTES:
            raise RefusedError(f"the file has more than {MAX_FILE_BYTES:,} bytes")
        parts.append(chunk)
    return b"".join(parts)


async def _body(request):
    """The request's JSON object; {} without a body. RefusedError."""
    if request.method in ("GET", "HEAD", "DELETE"):
        return {}
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise RefusedError(f"the request has more than {MAX_BODY_BYTES:,} bytes")
    try:
        body = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError("the request: expected a JSON object")
    return body


def _address(request):
    return request.client.host if request.client else ""


def _bearer(request):
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _why(body):
    why = body.get("why", "")
    if not isinstance(why, str) or len(why) > 1000:
        raise RefusedError("why: expected a text of at most 1000 characters")
    return why


def _may_see(identity):
    """A function that says whether the caller may see reports of a task; "": crashes of no task, which need full read
    access."""
    return lambda task: identity.may("read", task.partition("/")[0] or None)


def _hours(query):
    try:
        hours = float(query.get("hours", 24))
        if 0 < hours <= 14 * 24:
            return hours
    except ValueError:
        pass
    raise RefusedError(f"hours: expected a number above 0, at most {14 * 24}, got {query['hours']!r:.40}")


def _limit(query):
    try:
        return max(1, min(10_000, int(query.get("limit", 100))))
    except ValueError:
        raise RefusedError(f"limit: expected a whole number, got {query['limit']!r:.40}") from None


def _failure(status, message, headers=None):
    if status == 404 and message == "no such file":
        return Response(message, 404, media_type="text/plain")
    shown = message.encode(errors="backslashreplace").decode()  # it may quote the request
    return JSONResponse({"error": shown}, status, headers)
