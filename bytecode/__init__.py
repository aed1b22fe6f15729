"""From a task folder to a bundle, and back: task spec, import closure, compiler, bundle format, signing, verifier.

Imports nothing else of this project. Callers import the submodules by name; this file stays empty so that
`python -m vmhost.stdlib` starts without loading what it doesn't need.
"""

if __name__ == "bytecode":
    raise ImportError("bytecode: this folder is the package vmhost.bytecode; import that")
