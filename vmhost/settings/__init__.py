"""Settings files: kinds of values (`kinds`), reading (`files`), the table of host.yaml (`host`), and what is generated
from a table (`pages`)."""
