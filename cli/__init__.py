"""The command line; every command is one module under `commands` and imports what it needs when it runs."""
