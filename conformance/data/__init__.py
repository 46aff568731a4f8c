"""Tables that the suite reads: levels, and how many cases there are."""
