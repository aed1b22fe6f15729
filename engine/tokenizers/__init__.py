"""Tokenizers: `tokenizer.json` of Hugging Face's library, in plain Python, so that it works inside VMs.

    from vmhost.engine.tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file("tokenizer.json")
    ids = tokenizer.encode("What is this?").ids

docs/tokenizers.md lists what is supported."""

from vmhost.engine.tokenizers.document import TokenizerError
from vmhost.engine.tokenizers.encoding import Encoding
from vmhost.engine.tokenizers.tokenizer import Tokenizer

__all__ = ["Encoding", "Tokenizer", "TokenizerError"]
