"""The commands of `xinheng`, one per module."""
