"""Accounts, tokens, scopes, the audit log, limits on requests."""

import pytest

from vmhost.access import Access, AccessDeniedError, AccessError, RateLimit
from vmhost.stores import Database


class Clock:
    now_s = 1_800_000_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def access(tmp_path, clock):
    with Database(tmp_path / "access.db") as database:
        access = Access(database, clock, lambda: ("shop", "other"))
        access.add_account("ann", "developer", "root")
        yield access


def test_a_token_identifies_its_account_and_what_it_may(access):
    identity = access.identify(access.add_token("ann", "root"))
    assert (identity.name, identity.role) == ("ann", "developer")
    assert identity.may("push") and identity.may("push", "shop") and not identity.may("release")
    with pytest.raises(AccessDeniedError, match="needs release") as caught:
        identity.must("release")
    assert caught.value.known


def test_scopes_narrow_a_token(access):
    identity = access.identify(access.add_token("ann", "root", scopes=["push:shop"]))
    assert identity.may("push", "shop") and not identity.may("push", "other") and not identity.may("push")
    with pytest.raises(AccessError, match="may read, push only"):
        access.add_token("ann", "root", scopes=["release"])


def test_a_role_that_shrinks_shrinks_its_tokens(access):
    token = access.add_token("ann", "root")
    access.change_account("ann", "root", role="viewer")
    assert access.identify(token).scopes == ("read",)


@pytest.mark.parametrize("wrong", ["", "vmh_", "vmh_x_y", None, 7, "vmh_0123456789_" + "a" * 43])
def test_unknown_tokens_are_refused_alike(access, wrong):
    with pytest.raises(AccessDeniedError, match="not known, was revoked or has expired") as caught:
        access.identify(wrong)
    assert not caught.value.known


def test_revoked_expired_and_disabled_tokens_are_worth_nothing(access, clock):
    revoked = access.add_token("ann", "root")
    access.revoke_token(revoked.split("_")[1], "root")
    expiring = access.add_token("ann", "root", expires_s=60)
    lasting = access.add_token("ann", "root")
    access.identify(expiring)
    clock.now_s += 60
    for token in (revoked, expiring, lasting[:-1] + ("A" if lasting[-1] != "A" else "B")):
        with pytest.raises(AccessDeniedError):
            access.identify(token)
    access.identify(lasting)
    access.change_account("ann", "root", disabled=True)
    with pytest.raises(AccessDeniedError):
        access.identify(lasting)


def test_a_token_of_another_account_is_refused(access):
    access.add_account("bob", "viewer", "root")
    with pytest.raises(AccessDeniedError, match="not one of bob's"):
        access.identify(access.add_token("ann", "root"), "bob")


def test_no_secret_is_in_the_database_or_in_what_is_shown(access, tmp_path):
    token = access.add_token("ann", "root")
    secret = token.split("_", 2)[2]
    access.database.close()
    for path in tmp_path.iterdir():
        assert secret.encode() not in path.read_bytes()
    with Database(tmp_path / "access.db") as database:
        again = Access(database)
        assert secret not in repr(again.accounts()) and secret not in repr(again.audit())
        assert secret not in repr(again.identify(token))


def test_the_audit_log_tells_who_did_what(access):
    access.change_account("ann", "root", role="admin")
    first, *_ = access.audit(subject="ann")
    assert (first["who"], first["action"], first["details"]) == ("root", "account changed", {"role": "admin"})


@pytest.mark.parametrize(
    ("name", "role"),
    [("", "viewer"), ("Ann", "viewer"), ("a b", "viewer"), ("x" * 65, "viewer"), (None, "viewer"), ("bob", "king")],
)
def test_accounts_that_cannot_be(access, name, role):
    with pytest.raises(AccessError):
        access.add_account(name, role, "root")


def test_an_account_is_made_once(access):
    with pytest.raises(AccessError, match="already"):
        access.add_account("ann", "viewer", "root")


def test_a_rate_limit_is_each_callers_own():
    clock = Clock()
    limit = RateLimit(2, 3, clock)
    assert [limit.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.wait_s("b") == 0
    clock.now_s += 0.5
    assert limit.wait_s("a") == 0 and limit.wait_s("a") > 0
