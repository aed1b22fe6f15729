# requires: passlib
from passlib import hash as hashes
from passlib.context import CryptContext


def run(value):
    context = CryptContext(schemes=["pbkdf2_sha256", "sha512_crypt"], pbkdf2_sha256__rounds=1000)
    return [
        context.verify("x", context.hash("x")),
        hashes.md5_crypt.using(salt="abcdefgh").hash("x"),
        hashes.sha512_crypt.using(rounds=1000, salt="a").hash("x"),
    ]
