"""The HTTP layer, above the engine. This version has no server yet: use the command line or `xinheng.engine`."""
