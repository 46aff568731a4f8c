"""Does a device compute what the op set says? Cases, bounds, verdicts and reports; see `bounds` for the numerics."""
