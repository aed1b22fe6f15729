"""What a Host is made of: service, scheduler, pool of VMs, breaker, state folder, kept models, and functions that
travel."""
