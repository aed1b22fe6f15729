"""Builds the VMs' standard library: the modules offered to tasks, with patches, cuts and replacements."""
