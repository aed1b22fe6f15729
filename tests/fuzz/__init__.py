"""A fuzzer inside a VM: it finds all that a guest can reach, calls it with junk, and the host looks for crashes and
effects (`make fuzz`)."""
