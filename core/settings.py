"""Settings: one frozen class per layer, filled from arguments, the environment and `xinheng.toml`, in that order.

A class names its table; every spelling follows from it. For field `max_num_seqs` of table `engine`:

| Source | Spelling |
|---|---|
| argument | `EngineSettings(max_num_seqs=8)`, or on every command `--set engine.max_num_seqs=8` |
| environment | `XINHENG_ENGINE__MAX_NUM_SEQS=8` |
| file | `max_num_seqs = 8` under `[engine]` |

The file is the one that `XINHENG_CONFIG` names, else `xinheng.toml` in the current folder. One key of a table inside a
table takes one step more, `--set runtime.overrides.rms_norm=decompose` or `XINHENG_RUNTIME__OVERRIDES__RMS_NORM`; such
tables are merged over the sources key by key. Text is read as a TOML value where the field accepts one, else it stays
text. An unknown name is an error wherever it stands.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from .errors import SettingsError, nearest

PREFIX = "XINHENG_"
CONFIG_VARIABLE = "XINHENG_CONFIG"
_OTHER_VARIABLES = (CONFIG_VARIABLE, "XINHENG_TEST_CACHE")


class Settings(BaseModel):
    """Root of all settings classes: a subclass sets `table` and declares fields, each with a description.

    Raises:
        SettingsError: a key is unknown or a value impossible; the message says where it stands and what is allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    table: ClassVar[str]
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, **values: Any) -> None:
        (in_file, from_file), (given, from_environment) = _file_values(type(self)), _environment_values(type(self))
        origins = from_file | from_environment | dict.fromkeys(values, "argument")
        try:
            super().__init__(**_merged(_merged(in_file, given), values))
        except ValidationError as error:
            raise _explained(type(self), error, origins) from None
        self._origins = origins


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Values of two sources; those `above` win, tables that both have are merged key by key."""
    made = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            made[key] = _merged(below[key], above[key])
    return made


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "xinheng"


def _override(value: str) -> str:
    if value in ("device", "reference", "decompose") or (value.startswith("@") and len(value) > 1):
        return value
    raise ValueError("should be 'device', 'reference', 'decompose' or '@kernel-name'")


def _config_dir() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "xinheng"


class RuntimeSettings(Settings):
    """How graphs are run: where, in what precision and with which way out for ops that a device lacks."""

    table: ClassVar[str] = "runtime"

    device: Annotated[
        str,
        Field(description="`auto`, or `name[:ordinals or word][@runtime]`; digits are silicon, a word is an emulation"),
    ] = "auto"
    fallback: Annotated[
        Literal["error", "cpu", "reference"],
        Field(description="where an op runs that the device lacks; the receipt lists what was moved"),
    ] = "error"
    overrides: dict[str, Annotated[str, AfterValidator(_override)]] = Field(
        default_factory=dict,
        description="per op `device`, `reference`, `decompose` or `@kernel-name`, to bisect a numeric problem",
    )
    numerics: Annotated[
        Literal["strict", "fast"],
        Field(
            description="`fast` admits kernels that are declared to round more; `strict` is the default while none is"
        ),
    ] = "strict"
    dtype: Annotated[
        str,
        Field(description="element type of activations, for example `bfloat16`; `auto`: what model and device prefer"),
    ] = "auto"
    cache_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=_cache_dir,
        description="where models, compiled kernels and compiled graphs are kept",
        json_schema_extra={"shown": "~/.cache/xinheng"},
    )
    threads: Annotated[
        int | None, Field(ge=1, description="CPU threads of a device that has use for them; unset: one per core")
    ] = None
    graph: bool = Field(
        default=True, description="capture small steps as graphs of the device, where it can do that, and replay them"
    )
    plugins_disabled: list[str] = Field(
        default_factory=list, description="names of backend plugins that are listed but never imported"
    )
    require_certificate: Annotated[
        Literal["L0", "L1", "L2", "L3", "L4"] | None,
        Field(description="the conformance level that a device must have proven before a model runs on it"),
    ] = None
    trusted_keys: list[str] = Field(
        default_factory=list,
        description="who may sign certificates: public keys, as `ed25519:` text or as paths of PEM files",
    )
    certificates: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=lambda: _config_dir() / "certificates",
        description="the folder where certificates are looked for",
        json_schema_extra={"shown": "~/.config/xinheng/certificates"},
    )


S = TypeVar("S", bound=Settings)


class SettingsByClass(dict[type[Settings], Settings]):
    """The loaded settings of each class: `loaded[RuntimeSettings].device`."""

    def __getitem__(self, key: type[S]) -> S:
        return cast(S, super().__getitem__(key))


def load_settings(classes: Iterable[type[Settings]], assignments: Mapping[str, str] | None = None) -> SettingsByClass:
    """Load every class, and refuse whatever belongs to none of them.

    Args:
        classes: all settings classes of the program, so that an unknown table in the file or the environment shows.
        assignments: text by "table.field", as `--set` gives it; it counts as an argument.

    Raises:
        SettingsError: an unknown table, key or variable, or an impossible value.
    """
    by_table = {cls.table: cls for cls in classes}
    _check_tables(by_table)
    _check_variables(by_table)
    arguments: dict[str, dict[str, Any]] = {table: {} for table in by_table}
    for key, text in (assignments or {}).items():
        table, *path = key.split(".")
        if table not in by_table or not path or path[0] not in by_table[table].model_fields:
            known = [f"{name}.{field}" for name, cls in by_table.items() for field in cls.model_fields]
            raise SettingsError(f"--set {key}: no such setting{_hint(key, known)}")
        _place(arguments[table], path, _parse(text, _annotation(by_table[table], path)))
    return SettingsByClass({cls: cls(**arguments[table]) for table, cls in by_table.items()})


def origins(settings: Settings) -> dict[str, str]:
    """Where each field's value came from: "argument", "environment NAME", "xinheng.toml (path)" or "default".

    For a table merged from several sources it is the one of highest precedence.
    """
    return {field: settings._origins.get(field, "default") for field in type(settings).model_fields}


def config_file() -> Path | None:
    """The settings file in use, or None. SettingsError if `XINHENG_CONFIG` names a file that is not there."""
    named = os.environ.get(CONFIG_VARIABLE)
    path = Path(named).expanduser() if named else Path("xinheng.toml")
    if path.is_file():
        return path.absolute()
    if named:
        raise SettingsError(f"{CONFIG_VARIABLE} names {named!r}, which is no file; correct it or unset it")
    return None


def variable(cls: type[Settings], field: str) -> str:
    """The environment variable of a field."""
    return f"{PREFIX}{cls.table}__{field}".upper()


def settings_table(classes: Iterable[type[Settings]]) -> str:
    """A Markdown table of every setting, for the documentation."""
    lines = ["| Setting | Type | Default | Environment | Meaning |", "|---|---|---|---|---|"]
    for cls in classes:
        for name, field in cls.model_fields.items():
            cells = (
                f"`{cls.table}.{name}`",
                _shown_type(field.annotation),
                f"`{_shown_default(field)}`",
                f"`{variable(cls, name)}`",
                field.description or "",
            )
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


# Values and, by field, where they came from.
_Found = tuple[dict[str, Any], dict[str, str]]


def _file_values(cls: type[Settings]) -> _Found:
    path = config_file()
    if path is None:
        return {}, {}
    values = _load(path).get(cls.table, {})
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: {cls.table!r} must be a table, [{cls.table}]")
    for key in values:
        if key not in cls.model_fields:
            raise SettingsError(
                f"{path}: unknown key {key!r} in table [{cls.table}]{_hint(key, list(cls.model_fields))}"
            )
    return values, dict.fromkeys(values, f"{path.name} ({path})")


def _environment_values(cls: type[Settings]) -> _Found:
    values: dict[str, Any] = {}
    found: dict[str, str] = {}
    start = variable(cls, "")
    for name, text in sorted(os.environ.items()):
        if not name.startswith(start):
            continue
        path = name.removeprefix(start).lower().split("__")
        if path[0] not in cls.model_fields:
            known = [variable(cls, field) for field in cls.model_fields]
            raise SettingsError(f"environment variable {name} names no setting{_hint(name, known)}")
        _place(values, path, _parse(text, _annotation(cls, path)))
        found[path[0]] = f"environment {name}"
    return values, found


def _check_tables(by_table: Mapping[str, type[Settings]]) -> None:
    path = config_file()
    for table in _load(path) if path else ():
        if table not in by_table:
            raise SettingsError(f"{path}: unknown table [{table}]{_hint(table, list(by_table))}")


def _check_variables(by_table: Mapping[str, type[Settings]]) -> None:
    starts = tuple(variable(cls, "") for cls in by_table.values())
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and not name.startswith(starts) and name not in _OTHER_VARIABLES:
            known = [variable(cls, field) for cls in by_table.values() for field in cls.model_fields]
            raise SettingsError(f"environment variable {name} names no setting{_hint(name, [*known, CONFIG_VARIABLE])}")


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no valid TOML: {error}") from None


def _annotation(cls: type[Settings], path: list[str]) -> Any:
    annotation: Any = cls.model_fields[path[0]].annotation
    for _ in path[1:]:
        annotation = get_args(annotation)[1] if get_origin(annotation) is dict else Any
    return annotation


def _parse(text: str, annotation: Any) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    if parsed.keys() != {"value"} or isinstance(parsed["value"], (list, dict)):
        return parsed.get("value", text)
    try:
        TypeAdapter(annotation).validate_python(parsed["value"])
    except ValidationError:
        return text
    return parsed["value"]


def _place(values: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        inner = values.get(step)
        values[step] = values = inner if isinstance(inner, dict) else {}
    values[path[-1]] = value


def _explained(cls: type[Settings], error: ValidationError, places: Mapping[str, str]) -> SettingsError:
    sentences = []
    for detail in error.errors():
        field = str(detail["loc"][0]) if detail["loc"] else ""
        name = ".".join([cls.table, *map(str, detail["loc"])])
        if detail["type"] == "extra_forbidden":
            sentences.append(f"{name}: no such setting{_hint(field, list(cls.model_fields))}")
            continue
        message = detail["msg"].removeprefix("Value error, ")
        place = places.get(field, "default")
        sentences.append(f"{name} = {detail['input']!r} ({place}): {message[0].lower()}{message[1:]}")
    return SettingsError("; ".join(sentences))


def _hint(name: str, known: list[str]) -> str:
    return nearest(name, known) or f"; known: {', '.join(known)}"


def _shown_type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return _shown_type(get_args(annotation)[0])
    if get_origin(annotation) is list:
        return f"list of {_shown_type(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return f"table of {_shown_type(get_args(annotation)[1])}"
    members = [member for member in get_args(annotation) if member is not type(None)]
    if members:
        return " or ".join(_shown_type(member) for member in members)
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _shown_default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "shown" in extra:
        return str(extra["shown"])
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "unset" if value is None else str(value)
