"""Vocabularies from tokenizer.json, on small files that show one property each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xinheng.core.errors import FormatError, ModelError
from xinheng.engine.tokenizer import Tokenizer
from xinheng.engine.tokenizer.vocabulary import byte_alphabet

SPACE = "\u2581"


def added(index: int, content: str, special: bool = True, **flags: bool) -> dict[str, Any]:
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": content, "special": special, **common, **flags}


def byte_level(tokens: list[dict[str, Any]], **model: Any) -> dict[str, Any]:
    spelled = {byte: character for character, byte in byte_alphabet().items()}
    vocab = {spelled[byte]: byte for byte in range(256)} | {"he": 256, "ll": 257, "hell": 258}
    merges = [["h", "e"], ["l", "l"], ["he", "ll"]]
    pre = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": tokens,
        "normalizer": None,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": {**pre, "type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, **model},
    }


def sentencepiece(scheme: str) -> dict[str, Any]:
    pieces = ["<unk>", "<s>", "</s>", SPACE, "h", "i", "hi", SPACE + "hi"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    vocab |= {f"<0x{byte:02X}>": len(pieces) + byte for byte in range(256)}
    meta = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    steps = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    strip = [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": None,
        "pre_tokenizer": meta,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps + strip},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": [["h", "i"], [SPACE, "hi"]],
        },
    }


def build(folder: Path, data: Any, config: dict[str, Any] | None = None) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return Tokenizer.from_json(path, {} if config is None else config)


def test_control_and_plain_added_tokens(tmp_path: Path) -> None:
    tokens = [
        added(300, "<|end|>"),
        added(259, "   ", False),
        added(310, "<｜User｜>", False),
        added(305, "<b>", False),
    ]
    tokenizer = build(tmp_path, byte_level(tokens))
    assert tokenizer.vocab_size == 311
    assert tokenizer.encode("hell   <b>") == [258, 259, 305], "plain added tokens keep their ids; no truncation"
    assert not {300, 310} & set(tokenizer.encode("<|end|><｜User｜>"))
    assert tokenizer.encode("<|end|>hell<｜User｜>", special=True) == [300, 258, 310]
    assert tokenizer.decode([258, 300, 310, 305]) == "hell<b>"
    assert tokenizer.decode([258, 300], skip_special=False) == "hell<|end|>"


def test_control_tokens_in_the_models_own_tables(tmp_path: Path) -> None:
    data = byte_level([added(259, "hell!"), added(260, "STOP")], ignore_merges=True)
    data["model"]["vocab"] |= {"hell!": 259, "STOP": 260}
    data["model"]["merges"].append(["hell", "!"])
    tokenizer = build(tmp_path, data)
    assert tokenizer.encode("hell!") == [258, 33]
    assert tokenizer.encode("STOP") == [83, 84, 79, 80]
    assert tokenizer.encode("hell! STOP", special=True)[0] == 259


def test_flags_of_added_tokens(tmp_path: Path) -> None:
    tokens = [added(260, "<|r|>", rstrip=True), added(261, "<|l|>", lstrip=True), added(262, "NOW", single_word=True)]
    tokenizer = build(tmp_path, byte_level(tokens))
    assert tokenizer.encode("<|r|> \n hell", special=True) == [260, 258]
    assert tokenizer.encode("hell \n<|l|>", special=True) == [258, 261]
    assert tokenizer.encode("NOW.", special=True) == [262, 46]
    assert tokenizer.encode("NOWx", special=True) == [78, 79, 87, 120]


def test_marks_and_stops(tmp_path: Path) -> None:
    tokens = [added(260, "<s>"), added(261, "</s>"), added(262, "<|im_end|>"), added(263, "<|pad|>")]
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True}
    tokenizer = build(tmp_path, byte_level(tokens), config)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (260, 261, True)
    assert tokenizer.stop_ids == {261, 262}
    with pytest.raises(ModelError, match="'<nope>'"):
        build(tmp_path, byte_level(tokens), {"eos_token": "<nope>"})


def test_bos_of_the_post_processor(tmp_path: Path) -> None:
    data = byte_level([added(260, "<s>")])
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    data["post_processor"] = {
        "type": "Sequence",
        "processors": [
            {
                "type": "TemplateProcessing",
                "single": single,
                "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [260], "tokens": ["<s>"]}},
            }
        ],
    }
    tokenizer = build(tmp_path, data)
    assert (tokenizer.bos_id, tokenizer.add_bos) == (260, True)
    assert tokenizer.encode("hell") == [258], "only `bos` puts it there"
    assert build(tmp_path, data, {"add_bos_token": False}).add_bos is False


def test_space_only_at_the_start(tmp_path: Path) -> None:
    first = build(tmp_path, sentencepiece("first"))
    assert first.encode("hi") == [7]
    assert first.encode("hi</s>hi", special=True) == [7, 2, 6]
    assert first.encode("<s>hi", special=True) == [1, 6]
    always = build(tmp_path, sentencepiece("always"))
    assert always.encode("<s>hi</s>hi", special=True) == [1, 7, 2, 7]
    assert always.leading_space and always.decode([7, 7]) == "hi hi"
    assert always.decode(always.encode("你")) == "你"


def test_files_beside_the_tokenizer(tmp_path: Path) -> None:
    build(tmp_path, byte_level([added(260, "<|im_end|>")]))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "chat_template": "old"}')
    path = tmp_path / "tokenizer.json"
    assert Tokenizer.from_json(path).chat_template == "old"
    assert Tokenizer.from_json(path).eos_id == 260
    assert Tokenizer.from_json(path, {}).eos_id is None
    (tmp_path / "chat_template.jinja").write_text("new")
    assert Tokenizer.from_json(path).chat_template == "new"
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(FormatError, match="not an object"):
        Tokenizer.from_json(path)


def test_added_tokens_listed_in_the_configuration_only(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"260": {"content": "<|im_end|>", "special": True}}}
    tokenizer = build(tmp_path, byte_level([]), config)
    assert tokenizer.encode("hell<|im_end|>", special=True) == [258, 260]
    assert tokenizer.stop_ids == {260}


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert build(tmp_path, byte_level([]), {"chat_template": named}).chat_template == "d"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"model": {}}', '{"model": {"vocab": 1}}', '{"model": {"vocab": {}, "merges": []}}']
)
def test_what_is_no_tokenizer(tmp_path: Path, text: str) -> None:
    with pytest.raises((FormatError, ModelError), match=r"tokenizer\.json"):
        build(tmp_path, text)


def test_damaged_tables(tmp_path: Path) -> None:
    data = byte_level([])
    data["model"]["merges"] = ["h e", "ll"]
    with pytest.raises(FormatError, match=r"not a tokenizer\.json"):
        build(tmp_path, data)
    data = byte_level([{"id": 260}])
    with pytest.raises(FormatError, match="content"):
        build(tmp_path, data)
    with pytest.raises(FormatError, match="negative id"):
        build(tmp_path, byte_level([added(-1, "<|a|>")]))
    data = byte_level([])
    data["model"]["vocab"]["x!"] = -5
    with pytest.raises(FormatError, match="negative id"):
        build(tmp_path, data)
    with pytest.raises(FormatError, match="No such file"):
        Tokenizer.from_json(tmp_path / "missing.json")


def test_merges_as_strings(tmp_path: Path) -> None:
    data = byte_level([])
    data["model"]["merges"] = ["h e", "l l", "he ll"]
    assert build(tmp_path, data).encode("hell") == [258]


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    data = byte_level([])
    data["model"] = {"type": "Unigram", "vocab": [["a", 0.0]]}
    with pytest.raises(ModelError, match="'Unigram'"):
        build(tmp_path, data)
    data = byte_level([])
    data["decoder"] = {"type": "WordPiece"}
    with pytest.raises(ModelError, match="WordPiece"):
        build(tmp_path, data)
    data = byte_level([])
    data["model"]["merges"] = [["x", "yz"]]
    with pytest.raises(FormatError, match="not a usable"):
        build(tmp_path, data)
    with pytest.raises(FormatError, match="does not fit"):
        build(tmp_path, byte_level([added(10**9, "<|far|>")]))
