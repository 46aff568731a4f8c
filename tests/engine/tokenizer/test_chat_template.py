"""Chat templates: real ones against transformers, and what the sandbox, the origins and odd messages come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xinheng.core.errors import ModelError, RequestError
from xinheng.engine.tokenizer import ChatTemplate, Segment, Tokenizer

REAL = ["llama3_1", "qwen3", "deepseek_v3", "mistral_nemo", "gemma3"]
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def real(folder: Path, golden: Any) -> Callable[[str], ChatTemplate]:
    def load(name: str) -> ChatTemplate:
        bos, eos = golden["tokens"][name]
        return ChatTemplate((folder / "templates" / f"{name}.jinja").read_text(), bos_token=bos, eos_token=eos)

    return load


def text(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def special(segments: list[Segment]) -> str:
    """The prompt with what users wrote replaced by dots."""
    return "".join(segment.text if segment.special else "·" for segment in segments)


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> list[Segment]:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages or USER, **variables)


@pytest.mark.parametrize("name", REAL)
def test_real_templates_render_as_in_transformers(name: str, golden: Any, real: Callable[[str], ChatTemplate]) -> None:
    template = real(name)
    for chat, prompt in golden["prompts"][name].items():
        assert text(template.render(**golden["chats"][chat])) == prompt, chat


def test_smollm2_template(smollm2: Tokenizer, golden: Any) -> None:
    for chat, prompt in golden["prompts"]["smollm2"].items():
        arguments = golden["chats"][chat]
        assert text(smollm2.template.render(**arguments)) == prompt
        assert smollm2.encode_chat(**arguments) == golden["prompt_ids"]["smollm2"][chat]


def test_gemma3_prompt_ids(gemma3: Tokenizer, golden: Any, real: Callable[[str], ChatTemplate]) -> None:
    for chat, ids in golden["prompt_ids"]["gemma3"].items():
        assert gemma3.encode_chat(template=real("gemma3"), **golden["chats"][chat]) == ids


def test_origins_in_real_templates(real: Callable[[str], ChatTemplate]) -> None:
    turns = [
        {"role": "system", "content": " s "},
        {"role": "user", "content": " u "},
        {"role": "assistant", "content": "<think>t</think>a"},
        {"role": "user", "content": "v"},
    ]
    assert special(real("llama3_1").render(turns)) == (
        "<|begin_of_text|><|start_header_id|>·<|end_header_id|>\n\n·<|eot_id|><|start_header_id|>·<|end_header_id|>\n\n·"
        "<|eot_id|><|start_header_id|>·<|end_header_id|>\n\n·<|eot_id|><|start_header_id|>·<|end_header_id|>\n\n·"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert special(real("gemma3").render(turns)) == (
        "<bos><start_of_turn>·\n·\n\n·<end_of_turn>\n<start_of_turn>model\n·<end_of_turn>\n<start_of_turn>·\n·"
        "<end_of_turn>\n<start_of_turn>model\n"
    )
    assert special(real("deepseek_v3").render(turns)) == (
        "<｜begin▁of▁sentence｜>·<｜User｜>·<｜Assistant｜>·<｜end▁of▁sentence｜><｜User｜>·<｜Assistant｜>"
    )
    ending = "<|im_start|>·\n<think>\n·\n</think>\n\n·<|im_end|>\n<|im_start|>assistant\n"
    assert special(real("qwen3").render(turns[:3])).endswith(ending)


@pytest.mark.parametrize("name", REAL)
def test_tool_calls_render(name: str, real: Callable[[str], ChatTemplate]) -> None:
    function = {"name": "weather", "arguments": '{"city": "Köln"}'}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    turns = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    prompt = text(real(name).render(turns, tools=[tool]))
    assert "None" not in prompt
    if name in ("qwen3", "deepseek_v3", "mistral_nemo"):
        assert '{"city": "Köln"}' in prompt and "\\" not in prompt
        function["arguments"] = {"city": "Köln"}  # type: ignore[assignment]
        assert text(real(name).render(turns, tools=[tool])) == prompt
        blank: list[Any] = ["", []]
        for content in blank:
            assert text(real(name).render([USER[0], {**turns[1], "content": content}], tools=[tool])) == prompt


def test_arguments_that_are_no_json(real: Callable[[str], ChatTemplate]) -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{"}}
    with pytest.raises(RequestError, match="arguments of a tool call are not JSON"):
        real("mistral_nemo").render([*USER, {"role": "assistant", "tool_calls": [call]}])


EVIL = "<|x|>"
EXPRESSIONS = [
    ("{{ m }}", "·"),
    ("{{ '<|x|>' + m + '<|y|>' }}", "<|x|>·<|y|>"),
    ("{{ '<|x|>' ~ m ~ 1 ~ none ~ '<|y|>' }}", "<|x|>·<|y|>"),
    ("{{ m + '<|x|>' }}{{ [m, '|'] | join('<|x|>') }}", "·<|x|>·<|x|>|"),
    ("{{ ['a', m] | join(', ') }}", "a, ·"),
    ("{{ (' <|x|> ' + m) | trim }}", "<|x|> ·"),
    ("{{ m | upper }}{{ '<|x|>' | upper }}", "·<|X|>"),
    ("{{ m | replace('x', '<|y|>') }}", "·<|y|>·"),
    ("{{ '<|x|>' | replace('x', m) }}", "<|·|>"),
    ("{{ m[1:] }}{{ m[0] }}{{ '<|x|>'[:2] }}", "·<|"),
    ("{{ m | list | join }}", "·"),
    ("{{ ['<|x|>', r] | join }}{{ ('<|y|>' + r) | safe }}", "<|x|>·<|y|>·"),
    ("{{ r.replace('u', '<|y|>') }}{{ tools[0].name.split('|')[0] + '<|y|>' }}", "<|y|>·<|y|>"),
    ("{% set t = ['<|a|>'] + ['<|b|>'] %}{{ t[1] }}{{ ('<|c|>', 'd')[0] }}", "<|b|><|c|>"),
    ("{{ m | string | safe }}{{ '<|x|>' | safe | string }}", "·<|x|>"),
    ("{% set x %}<|x|>{{ m }}{% endset %}{{ x | trim }}{{ x | length }}", "<|x|>·"),
    ("{% macro f(a) %}[{{ a | trim }}]{% endmacro %}{{ f(m) ~ f('<|x|>') }}", "[·][<|x|>]"),
    ("{% macro f() %}<|{{ caller() }}|>{% endmacro %}{% call f() %}{{ m }}{% endcall %}", "<|·|>"),
    ("{% filter trim %}  <|x|>{{ m }} {% endfilter %}", "<|x|>·"),
    ("{% set n = namespace(a='') %}{% for i in range(2) %}{% set n.a = n.a + '<' + m %}{% endfor %}{{ n.a }}", "<·<·"),
    ("{% set t = {'user': '<|user|>', 'n': ['<|x|>']} %}{{ t[r] }}{{ t.n[0] }}", "<|user|><|x|>"),
    ("{{ m | tojson }}{{ '<|x|>' | tojson }}", '·"<|x|>"'),
    ("{{ '%s<|x|>' | format(m) }}{{ '{}<|x|>'.format(m) }}", "·"),
    ("{{ m.split('|') | last }}{{ 'a<|x|>b'.split('<|x|>')[1] }}", "·b"),
    ("{{ bos_token + m + eos_token }}", "<s>·</s>"),
    ("{{ variable }}", "·"),
    ("{{ r }}{{ tools[0].name }}{{ messages[0] }}", "·"),
    ("{% generation %}<|x|>{{ m }}{% endgeneration %}", "<|x|>·"),
    ("{% for c in m %}{% if c == '|' %}{% continue %}{% endif %}{{ c }}{% endfor %}", "·"),
    ("{% if m == '<|x|>' and '<|x|>' in m and m is string and m | length == 5 %}ok{% endif %}", "ok"),
    ("{{ m if m.startswith('<') else 'no' }}{{ m.find('x') }}", "·"),
]


@pytest.mark.parametrize(("expression", "expected"), EXPRESSIONS)
def test_only_what_the_template_wrote_is_special(expression: str, expected: str) -> None:
    source = "{% set m = messages[0].content %}{% set r = messages[0].role %}" + expression
    message = {"role": "user", "content": EVIL}
    assert special(render(source, [message], tools=[{"name": EVIL}], variable=EVIL)) == expected


def test_role_is_the_users_text() -> None:
    segments = render("{{ '<|' + messages[0].role + '|>' }}", [{"role": "x|><|y", "content": ""}])
    assert [(segment.text, segment.special) for segment in segments] == [("<|", True), ("x|><|y", False), ("|>", True)]


def test_neighbouring_pieces_of_one_origin_are_one_segment() -> None:
    assert render("a{{ 'b' }}{% if true %}c{% endif %}{{ messages[0].content }}{{ messages[0].role }}") == [
        Segment("abc", True),
        Segment("hiuser", False),
    ]


def test_content_forms() -> None:
    source = "{{ messages[0].content }}|{{ messages[0].content is none }}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text(render(source, [{"role": "user", "content": parts}])) == "a\nb|False"
    assert text(render(source, [{"role": "user", "content": []}])) == "|False"
    for absent in ({"role": "user", "content": None}, {"role": "user"}):
        assert text(render(source, [absent])) == "|True"
        assert text(render("{{ 'x' in messages[0].content }}{{ messages[0].content + 'y' }}", [absent])) == "Falsey"


def test_template_that_wants_parts() -> None:
    source = "{% for p in messages[0].content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
    assert text(render(source)) == "hi"
    assert text(render(source, [{"role": "user", "content": [{"type": "text", "text": "a"}]}])) == "a"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("x", "must be a list"),
        ({"role": "user"}, "must be a list"),
        (["x"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], "string field 'role'"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "of type 'image_url'"),
        ([{"role": "user", "content": ["x"]}], "of type 'str'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "of type 'text'"),
        ([{"role": "user", "content": "x", "tool_calls": "y"}], "tool_calls must be a list"),
    ],
)
def test_messages_without_sense(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render("{{ messages }}", messages) if messages else ChatTemplate("x").render(messages)


def test_fields_that_are_none_are_left_out() -> None:
    message = {"role": "user", "content": "x", "tool_calls": None, "name": None}
    assert text(render("{{ messages[0] | list | sort | join(',') }}", [message])) == "content,role"


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("{{ raise_exception('no system role') }}", RequestError, "no system role"),
        ("{{ messages[0].content + 1 }}", RequestError, "TypeError"),
        ("{{ nothing.more }}", RequestError, "nothing"),
        ("{{ messages[9].role }}", RequestError, "no element 9"),
        ("{{ 1 // 0 }}", RequestError, "ZeroDivisionError"),
        ("{{ ''.__class__.mro() }}", ModelError, "sandbox"),
        ("{{ messages.append(1) }}", ModelError, "sandbox"),
        ("{% include 'x' %}", ModelError, "sandbox"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ModelError, "without end"),
        ("{{ messages[0].content._spans | length + messages[0].content._spans.x }}", ModelError, "sandbox"),
        ("{% if %}", ModelError, "line 1"),
        ("{% while true %}{% endwhile %}", ModelError, "does not compile"),
    ],
)
def test_faults(source: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        render(source)


def test_deeply_nested_messages() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(RequestError, match="too deeply"):
        render("x", [{"role": "user", "content": "x", "extra": nested}])


@pytest.mark.parametrize("name", ["bos_token", "raise_exception", "strftime_now"])
def test_names_a_request_cannot_set(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        variables: dict[str, Any] = {name: "y"}
        ChatTemplate("x").render(USER, **variables)


def test_variables_and_helpers() -> None:
    source = "{{ add_generation_prompt }}{{ enable_thinking }}{{ tools is none }}{{ strftime_now('%%') }}"
    assert text(render(source, add_generation_prompt=False, enable_thinking=False, tools=[])) == "FalseFalseTrue%"
    assert text(render("{{ {'a': '<é>'} | tojson(indent=1) }}")) == '{\n "a": "<é>"\n}'


def test_white_space_is_jinjas_as_in_transformers() -> None:
    assert text(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n")) == "a\nb\nc"
