"""The next step of each thread of the guest, from the files in which they note it (tests/fuzz/guest.py)."""


def notes(folder):
    """{thread: its last calls, oldest first}"""
    found = {}
    for file in sorted(folder.glob("*.notes")):
        lines = [line.strip("\0 ") for line in file.read_bytes().decode("ascii", "replace").split("\n")]
        numbered = [(int(line.split(":")[0]), line) for line in lines if line.split(":")[0].isdigit()]
        found[file.stem] = [line for _, line in sorted(numbered)]
    return found
