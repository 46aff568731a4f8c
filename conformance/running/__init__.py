"""Running suites on a device: workers that may die, a journal, ledgers, levels, and the report in the end."""
