"""Backends: plugins that run graphs on one kind of hardware. Each imports only the core (and `_torch`)."""
