"""Exit codes of commands, by the error that ended them.

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | the task raised, or an answer was wrong |
| 2 | the command line or an input is wrong: no such file, not JSON, not a task folder, a key that cannot be read |
| 3 | the task cannot be compiled, or the bundle is refused |
| 4 | the call was stopped at a limit: time or memory |
| 5 | the host could not run the call: queue full, breaker open, VM lost, host closed |
| 6 | `doctor` found something wrong with this machine |
| 130 | interrupted with Ctrl-C |
| 141 | the reader of stdout went away |
"""

DONE, TASK_FAILED, WRONG_INPUT, REFUSED, LIMIT, HOST_FAILED, UNHEALTHY = range(7)
INTERRUPTED, PIPE_CLOSED = 130, 141


def _codes():
    """Pairs of (classes of errors, exit code); the first match applies."""
    import vmhost.bytecode.errors  # here: only needed after an error
    import vmhost.errors as ours

    return (
        ((ours.TaskError, ours.PermissionDenied, ours.CrossingError), TASK_FAILED),
        ((ours.TimeLimitError, ours.MemoryLimitError), LIMIT),
        ((ours.BundleError, vmhost.bytecode.errors.BundleError, vmhost.bytecode.errors.CompileError), REFUSED),
        ((vmhost.bytecode.errors.TaskSpecError,), REFUSED),
        ((vmhost.bytecode.errors.BytecodeError,), WRONG_INPUT),
        ((ours.ConfigurationError,), WRONG_INPUT),
        ((ours.VMHostError,), HOST_FAILED),
    )


def exit_code(error):
    """The exit code for an error of vmhost, None for another one."""
    return next((code for kinds, code in _codes() if isinstance(error, kinds)), None)
