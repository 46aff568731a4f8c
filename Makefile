.PHONY: demo test check native-check test-npu-contract fix build certify venv

demo: ## set up and let a small model answer on the CPU
	scripts/demo

test: ## set up and run the tests
	scripts/test

check: ## style, types, layers, generated documents
	scripts/check

native-check: ## the C++ kernels for several processors, under sanitizers and an emulator
	XINHENG_NATIVE_CHECKS=1 scripts/test -m slow tests/backends/cpu/test_csrc_checks.py

test-npu-contract: ## calls of torch_npu against the vendor's own package, without a card
	scripts/test-npu-contract

fix: ## repair style and generated documents
	scripts/fix

build: ## wheel and sdist, tried in an empty environment
	scripts/build

certify: ## conformance of the CPU in both modes, and the support matrix from its certificates
	scripts/certify

venv: ## the development environment in .venv
	scripts/setup dev
