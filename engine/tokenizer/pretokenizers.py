"""The splitting rules of byte-level BPE vocabularies, by the name a GGUF file gives them in `tokenizer.ggml.pre`.

Merges are learned inside the pieces such a rule makes, so a vocabulary only gives its trained ids with its own rule; a
wrong one costs quality without any visible fault. The expressions are those of the models' own `tokenizer.json`; the
meaning of the names is the one of the GGUF format (ggml-org/llama.cpp, `llama-vocab.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from xinheng.core.errors import ModelError, nearest


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before BPE, and what else follows from the same name.

    `patterns`: regular expressions applied one after the other; each isolates its matches inside the pieces left by
    those before it. `ignore_merges`: a piece that is a token as a whole becomes that token without merging. `add_bos`:
    whether prompts begin with BOS when the file does not say. `nfc`: text is brought into Unicode form C first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def build(self) -> Sequence:
        """The rule as a step of the `tokenizers` library, ending in its byte alphabet."""
        splits = [Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> Normalizer | None:
        """The Unicode normal form that precedes the rule, if any."""
        return NFC() if self.nfc else None


def _ranges(*pairs: str) -> str:
    """A character class out of "first-last" pairs of hexadecimal code points."""
    return "[" + "".join("-".join(chr(int(point, 16)) for point in pair.split("-")) for pair in pairs) + "]+"


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEEPSEEK_CJK = _ranges("4e00-9fa5", "0800-4e00", "ac00-d7ff")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    _ranges("4e00-9fa5", "3040-309f", "30a0-30ff"),
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# Cased letters as DeepSeek-LLM lists them: narrower than \p{L&} (no lower-case Armenian, no Georgian Mkhedruli).
_DEEPSEEK_LETTERS = _ranges(
    *("41-5a", "61-7a", "b5", "c0-d6", "d8-f6", "f8-1ba", "1bc-1bf", "1c4-293", "295-2af", "370-373", "376", "377"),
    *("37b-37d", "37f", "386", "388-38a", "38c", "38e-3a1", "3a3-3f5", "3f7-481", "48a-52f", "531-556", "10a0-10c5"),
    *("13a0-13f5", "13f8-13fd", "1c90-1cba", "1cbd-1cbf", "1d00-1d2b", "1d6b-1d77", "1d79-1d9a", "1e00-1f15"),
    *("1f18-1f1d", "1f20-1f45", "1f48-1f4d", "1f50-1f57", "1f59", "1f5b", "1f5d", "1f5f-1f7d", "1f80-1fb4"),
    *("1fb6-1fbc", "1fbe", "1fc2-1fc4", "1fc6-1fcc", "1fd0-1fd3", "1fd6-1fdb", "1fe0-1fec", "1ff2-1ff4", "1ff6-1ffc"),
    *("2102", "2107", "210a-2113", "2115", "2119-211d", "2124", "2126", "2128", "212a-212d", "212f-2134", "2139"),
    *("213c-213f", "2145-2149", "214e", "2183", "2184", "2c00-2c7b", "2c7e-2ce4", "2ceb-2cee", "2cf2", "2cf3"),
    *("a640-a66d", "a680-a69b", "a722-a76f", "a771-a787", "a78b-a78e", "ab70-abbf", "fb00-fb06", "fb13-fb17"),
    *("ff21-ff3a", "ff41-ff5a", "10400-1044f", "104b0-104d3", "104d8-104fb", "10c80-10cb2", "10cc0-10cf2"),
    *("118a0-118df", "1e900-1e943"),
)
_DEEPSEEK_PUNCTUATION = _ranges("21-2f", "3a-7e", "ff01-ff0f", "ff1a-ff5e", "2018-201f", "3000-3002")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_DEEPSEEK_LETTERS}",
    rf"\s?{_DEEPSEEK_PUNCTUATION}",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")

_RULES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    ("gpt-2 phi-2 mpt olmo jais exaone4 gigachat a.x-4.0 mellum trillion granite-docling", PreTokenizer((_GPT2,))),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer((r"\p{N}", _GPT2))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe", PreTokenizer((_LLAMA3,))),
    ("chatglm-bpe glm4", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    ("qwen2", PreTokenizer((_QWEN2,), nfc=True)),
    ("deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2", PreTokenizer((_QWEN2,))),
    ("qwen35", PreTokenizer((_QWEN35,), nfc=True)),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 minimax-m2", PreTokenizer((_O200K,))),
    ("deepseek-v3 hunyuan-dense", PreTokenizer(_DEEPSEEK_V3)),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER)),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    ("seed-coder", PreTokenizer((_SEED_CODER,))),
    ("bloom gpt3-finnish poro-chat", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
)
PRETOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: rule for names, rule in _RULES for name in names.split()}
)


def pretokenizer(name: str) -> PreTokenizer:
    """The rule called `name`. Raises ModelError naming the known ones; there is no default."""
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        known = sorted(PRETOKENIZERS)
        raise ModelError(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre){nearest(name, known)}; known: {', '.join(known)}. "
            "Use the model's tokenizer.json, or add the rule to engine/tokenizer/pretokenizers.py"
        ) from None
