# requires: chardet
import chardet


def run(value):
    return [
        chardet.detect("Příliš žluťoučký kůň úpěl ďábelské ódy".encode(each))["encoding"]
        for each in ("utf-8", "utf-16")
    ]
