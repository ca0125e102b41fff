"""JSON lines: one JSON object on each line, which any program can read and write.

    {"reftime": "2026-11-20T06:00:00Z", "station": 5, "wind": 3.4, "note": "gusty"}

`reftime` and the declared fields are metadata (null is the same as missing), the other keys are the data, a mapping.
`ondisk.json_values` describes values that JSON lacks. Lines from outside are stored unchanged.
Source: RFC 8259 and jsonlines.org; NaN and Infinity as bare words are refused.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, ClassVar, NoReturn

from ondisk import json_values
from ondisk.config import MAX_DEPTH, DatasetConfig
from ondisk.datum import Datum, FieldType, restored
from ondisk.errors import FrameCorrupt, InvalidInput, shown
from ondisk.formats.base import Batch, JoinsParts, Kept, Loaded, sifted
from ondisk.formats.lines import LineFormat, why_not_text
from ondisk.formats.metadata import OncePerMapping, canonical_metadata

# Of a line only brackets and quotes are kept: an opening bracket as 1, a closing one as -1.
_STEPS, _OTHERS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff"), bytes({*range(256)} - {*b'[{]}"'})
_STRING = re.compile(rb'"[^"]*"?')
_SOME = 64 * 1024
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OBJECT = re.compile(rb'\s*+\{(?=.*?(?:"reftime"|\\u)).*\}\s*', re.DOTALL)
_PRINTED, _PLACE = frozenset({"metadata", "data", "location"}), frozenset({"segment", "offset", "size"})
"""The keys of a datum as `query --json` prints it, besides `reftime` and `dataset`; and those of its location."""

_INFINITIES = (float("inf"), float("-inf"))


def _head(reftime: int) -> bytes:
    return b'{"reftime":"%b"' % json_values.format_time(reftime).encode()


class JsonLines(LineFormat, JoinsParts):
    name: ClassVar[str] = "jsonl"
    plausible: ClassVar[re.Pattern[bytes]] = _OBJECT

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        unique = json_values.unique_keys
        self._unique_decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=unique)
        self._reals = [name for name, kind in config.fields.items() if kind is FieldType.REAL]
        self._times = Kept(json_values.parse_time)
        self._heads = Kept(_head)
        self._metas = OncePerMapping(self._meta)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        return re.match(rb'\s*\{\s*["}]', head) is not None

    @property
    def undeclared(self) -> bool:
        return False  # keys that are not declared are data

    def load(self, payloads: Sequence[bytes]) -> Loaded:
        data, reftimes = [], []
        for position, payload in enumerate(payloads):
            try:
                content = self._loads(payload, MAX_DEPTH)
                reftimes.append(self._reftime(content))
            except InvalidInput as error:
                raise FrameCorrupt(f"not a line of JSON: {error.message}", position=position) from None
            data.append(self._data(content, payload))
        return Loaded(data, None, reftimes)

    def decode(self, payload: bytes) -> dict[str, Any]:
        found: dict[str, Any] = self.load([payload]).data[0]
        return found

    def _data(self, content: dict[str, Any], payload: bytes) -> dict[str, Any]:
        fields = self.config.fields
        content.pop("reftime", None)
        shaped = b'"$' in payload or b"\\u0024" in payload
        return {
            key: json_values.from_json(value) if shaped else value
            for key, value in content.items()
            if key not in fields
        }

    def describe(self, payload: bytes) -> tuple[int, Mapping[str, Any]]:
        try:
            return self._described(self._loads(payload, MAX_DEPTH))
        except InvalidInput as error:
            raise FrameCorrupt(f"not a line of JSON: {error.message}") from None

    def read_line(self, line: bytes) -> tuple[int, Mapping[str, Any]]:
        return self._described(self.read_object(line))

    def read_object(self, line: bytes) -> dict[str, Any]:
        """Return the object in a line from outside, whose keys need not be those of a datum; raise as `read_line`."""
        self.check_size(line)
        is_flat = len(line) < _SOME and line.count(b"{") == 1
        content = self._loads(line, self.config.max_depth, None if is_flat else self._unique_decoder)
        if is_flat and line.count(b",") >= len(content):  # else each comma separates two keys, and none is there twice
            self._unique_decoder.decode(line.decode())
        for name in self._reals:
            if content.get(name) in _INFINITIES:
                hint = 'write {"$float": "+Inf"} for infinity'
                raise InvalidInput(f"{name}: the number is too large for a real; {hint}")
        if "location" in content and _is_printed(content):
            raise InvalidInput("`query --json` printed it, which is not data; append what `query --data` prints")
        return content

    def read_stored_line(self, line: bytes) -> tuple[int, Mapping[str, Any]]:
        self.check_size(line)
        return self._described(self._loads(line, MAX_DEPTH))

    def takes_members(self, keys: Sequence[str]) -> bool:
        """Return whether `encode_members` can encode data that are mappings with these keys."""
        return len({*keys}) == len(keys) and {"reftime", *self.config.fields}.isdisjoint(keys)

    def encode_members(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], members: Sequence[bytes]
    ) -> Batch:
        """Encode columns whose content is given as members of a JSON object, a comma before each."""

        def encoded(some: slice) -> Batch:
            return self.encode_parts(reftimes[some], metadata[some], [members[some]])

        return sifted(encoded, slice(0, len(members)))

    def _metadata(self, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return metadata as canonical values, and as JSON can hold them; or raise InvalidInput."""
        fields, depth = self.config.fields, self.config.max_depth  # the line itself is the first level
        for name in metadata:
            if name not in fields:
                raise InvalidInput(f"jsonl cannot store the metadata {shown(name)}: it is not a declared field")
        stored = canonical_metadata(metadata, fields, times_as_text=False)
        shaped = {name: _to_json(stored[name], kind, depth - 1) for name, kind in fields.items() if name in stored}
        return stored, shaped

    def write_line(self, datum: Datum) -> tuple[Mapping[str, Any], bytes]:
        metadata, shaped_metadata = self._metadata(datum.metadata)
        fields, depth = self.config.fields, self.config.max_depth
        data = {} if datum.data is None else datum.data
        if not isinstance(data, Mapping):
            raise InvalidInput(f"the data of jsonl must be a mapping, not {type(data).__name__}")
        line = {"reftime": datum.reftime.isoformat().replace("+00:00", "Z"), **shaped_metadata}
        for key in data:
            if key == "reftime" or key in fields:
                raise InvalidInput(f"the data contain the key {shown(key)}, which is metadata")
        # The reftime prevents that data with the only key "$bytes" are treated as a shape: a line always has a reftime.
        shaped = json_values.to_json({"reftime": None, **data}, depth)
        del shaped["reftime"]
        payload = json_values.dump(line | shaped)
        self.check_size(payload)
        return metadata, payload

    def content_part(self, key: str, value: Any) -> bytes:
        return b"," + json_values.dump({key: value})[1:-1]

    def encode_parts(
        self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]], parts: Sequence[Sequence[bytes]]
    ) -> Batch:
        metas = self._metas.of(metadata)
        heads, ends = map(self._heads.__getitem__, reftimes), repeat(b"}", len(reftimes))
        lines = [*map(b"".join, zip(heads, [line for _, line in metas], *parts, ends, strict=True))]
        self.check_size(max(lines, key=len, default=b""))
        return Batch([*reftimes], [canonical for canonical, _ in metas], lines)

    def _meta(self, metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        canonical, shaped = self._metadata(metadata)
        return canonical, b"," + json_values.dump(shaped)[1:-1] if shaped else b""

    def _described(self, content: dict[str, Any]) -> tuple[int, Mapping[str, Any]]:
        return self._reftime(content), canonical_metadata(content, self.config.fields, times_as_text=True, shapes=True)

    def _loads(self, line: bytes, max_depth: int, decoder: json.JSONDecoder | None = None) -> dict[str, Any]:
        # The configured limits apply to input; lines stored under larger limits are still read. Brackets are counted
        # before parsing, because the parser recurses as deep as they nest.
        if line.count(b"[") + line.count(b"{") > max_depth and _nests_deeper(line, max_depth):
            raise InvalidInput(f"nested deeper than max_depth, {max_depth}")
        try:
            content = (decoder or self._decoder).decode(line.decode())
        except UnicodeDecodeError as error:
            raise InvalidInput(why_not_text(line) or f"byte {error.start + 1} is not valid UTF-8") from None
        except InvalidInput:
            raise
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidInput(why_not_text(line) or f"not valid JSON: {error}") from None
        except ValueError:
            raise InvalidInput(why_not_text(line) or "an integer has too many digits") from None
        if not isinstance(content, dict):
            raise InvalidInput("not a JSON object")
        if _SURROGATE.search(line):
            _check_unicode(content)
        return content

    def _reftime(self, content: dict[str, Any]) -> int:
        text = content.get("reftime")
        if text is None:
            raise InvalidInput('it has no "reftime" such as "2026-11-20T06:00:00Z"')
        if not isinstance(text, str):
            raise InvalidInput('reftime must be text such as "2026-11-20T06:00:00Z"')
        try:
            return self._times[text]
        except InvalidInput as error:
            raise InvalidInput(f"reftime: {error.message}") from None


def _to_json(stored: Any, kind: FieldType, depth: int) -> Any:
    if kind is FieldType.TIMESTAMP:
        return json_values.format_time(stored)
    return json_values.to_json(restored(stored, kind), depth)


def _nests_deeper(line: bytes, most: int) -> bool:
    """Return whether brackets outside of strings nest deeper than `most`, in some tens of nanoseconds for each."""
    text = line.replace(rb"\\", b"").replace(rb"\"", b"").translate(_STEPS, _OTHERS)
    steps = _STRING.sub(b"", text.replace(b'""', b""))
    depth = 0
    for at in range(0, len(steps), _SOME):
        depths = [*accumulate(array("b", steps[at : at + _SOME]), initial=depth)]
        if max(depths) > most:
            return True
        depth = depths[-1]
    return False


def _is_printed(content: Mapping[str, Any]) -> bool:
    """Return whether `query --json` printed an object. Stored as it is, it would have no fields."""
    place = content["location"]
    return isinstance(place, dict) and place.keys() == _PLACE and content.keys() - {"reftime", "dataset"} == _PRINTED


def _check_unicode(content: dict[str, Any]) -> None:
    """Refuse escapes of half a character, which cannot be written as UTF-8."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("it contains a lone surrogate, which is not valid Unicode") from None


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidInput(f'{word} is not valid JSON; write {{"$float": …}}')
