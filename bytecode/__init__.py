"""From a task folder to a bundle, and back: task spec, import closure, compiler, bundle format, signing, verifier.

Imports nothing else of this project. Callers import the submodules by name; this file stays empty so that
`python -m vmhost.stdlib` loads only what it needs.
"""

if __name__ == "bytecode":
    raise ImportError("bytecode: this folder is the package vmhost.bytecode; import that")
