"""The data pipeline: events are stored, read as sequences, and trigger tasks; what these make is kept in tables.

Above `Host`: it uses the public API of `vmhost` and nothing beneath it.
"""
