"""How the standard library of the VMs is made: what a task may reach in it, and what is changed, cut and replaced."""
