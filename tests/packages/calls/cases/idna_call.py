# requires: idna
import idna


def run(value):
    return [
        idna.encode("königsgäßchen.de").decode(),
        idna.decode("xn--eckwd4c7c.xn--zckzah"),
        idna.encode("ドメイン.テスト", uts46=True).decode(),
    ]
