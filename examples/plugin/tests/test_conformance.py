"""The conformance suite on acme:0, a test per case; `pytest --xinheng-level L1` asks for more."""

from xinheng.conformance.pytest_plugin import conformance_tests

test_acme = conformance_tests("acme:0", level="L0")
