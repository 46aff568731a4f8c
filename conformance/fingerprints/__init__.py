"""How a device computes, deduced from what it computes."""
