"""How a shell would start the command line, for tests that need a process of its own."""

import sys

COMMAND = [sys.executable, "-c", "import sys; from vmhost.cli import main; sys.exit(main())"]
