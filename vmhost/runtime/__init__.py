"""The parts of a Host: service, scheduler, pool of VMs, breaker, state folder, kept models, and functions that travel
to VMs."""
