"""
Read which probes a bpftrace script attaches to, without running it.

This is a reader of headers, not of the language: it skips comments, strings and
bodies, and looks at what stands before each top-level block. Bodies are kept as
text, so that a map can be traced back to the probes that fill it.
"""

import re
from dataclasses import dataclass
from typing import Final

# Probe types by their short forms (bpftrace's man page, "Probe types").
_SHORT_FORMS: Final = {
    "k": "kprobe",
    "kr": "kretprobe",
    "u": "uprobe",
    "ur": "uretprobe",
    "U": "usdt",
    "t": "tracepoint",
    "rt": "rawtracepoint",
    "p": "profile",
    "i": "interval",
    "s": "software",
    "h": "hardware",
    "w": "watchpoint",
    "aw": "asyncwatchpoint",
    "f": "fentry",
    "fr": "fexit",
    "kfunc": "fentry",
    "kretfunc": "fexit",
    "it": "iter",
    "begin": "BEGIN",
    "end": "END",
}
_DEFINITION: Final = re.compile(r"(struct|union|enum|typedef|fn|macro|config|import|let)\b")
_TOKEN: Final = re.compile(r'(?:"[^"]*"|[^\s,"])+|,')
_COMMENT_OR_STRING: Final = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.DOTALL)
_MAP_FILL: Final = r"{name}(?!\w)(?:\[[^=;]*?\])?\s*(?:=(?!=)|\+\+|--|[-+*/|&^]=)"
_ANY_MAP: Final = re.compile(r"@\w*")
_EMPTIED_MAP: Final = re.compile(r"\b(?:clear|delete)\s*\(\s*(@\w*)")


@dataclass(frozen=True, slots=True)
class AttachPoint:
    """
    One place a script attaches to.

    Args:
        provider: Kind of probe, in its long form, such as "usdt" or "tracepoint".
        text: As the script has it, such as "usdt:$1:name".
    """

    provider: str
    text: str

    @property
    def probe_name(self) -> str:
        """Its last part: of `usdt:$1:name` the name."""
        return self.text.rsplit(":", 1)[-1].strip('"')

    @property
    def is_one_probe(self) -> bool:
        """Tell whether it stands for exactly one probe, so that probes can be counted."""
        return not any(sign in self.text for sign in "*?[")


@dataclass(frozen=True, slots=True)
class ProbeBlock:
    """
    Attach points with the body that they share.

    Args:
        attach_points: At least one.
        body: The text between its braces, without comments; strings are emptied.
    """

    attach_points: tuple[AttachPoint, ...]
    body: str

    def fills(self, map_name: str) -> bool:
        """Tell whether the body assigns to the map."""
        return re.search(_MAP_FILL.format(name=re.escape(map_name)), self.body) is not None


def parse_blocks(text: str) -> tuple[ProbeBlock, ...]:
    """
    Read a script's probes; what is no script has none.
    """
    plain = _COMMENT_OR_STRING.sub(_blank, text)
    quoted = _COMMENT_OR_STRING.sub(_blank_comment, text)
    blocks = []
    start = depth = body_start = 0
    for index, sign in enumerate(plain):
        if sign == "{":
            if depth == 0:
                body_start = index
            depth += 1
        elif sign == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                points = _parse_head(quoted[start:body_start])
                if points:
                    blocks.append(ProbeBlock(points, plain[body_start + 1 : index]))
                start = index + 1
        elif sign == ";" and depth == 0:
            start = index + 1  # the end of a definition, such as a struct's
    return tuple(blocks)


def find_result_maps(blocks: tuple[ProbeBlock, ...]) -> tuple[str, ...]:
    """
    Name the maps that probes fill, in order of appearance.

    Maps that the script itself empties (clear, delete) are its scratch and no results.
    """
    scratch = {name for block in blocks for name in _EMPTIED_MAP.findall(block.body)}
    names = dict.fromkeys(
        name for block in blocks for name in _ANY_MAP.findall(block.body) if block.fills(name)
    )
    return tuple(name for name in names if name not in scratch)


def _parse_head(head: str) -> tuple[AttachPoint, ...]:
    lines = [line for line in head.splitlines() if not line.lstrip().startswith("#")]
    words = "\n".join(lines).strip()
    if _DEFINITION.match(words):
        return ()
    points = []
    is_expected = True
    for word in _TOKEN.findall(words):
        if word == ",":
            is_expected = True
        elif is_expected:
            points.append(_parse_point(word))
            is_expected = False
        else:
            break  # the predicate, /.../
    return tuple(point for point in points if point is not None)


def _parse_point(word: str) -> AttachPoint | None:
    form = word.split(":", 1)[0]
    provider = _SHORT_FORMS.get(form, form)
    if not provider.isidentifier():
        return None
    if ":" not in word and provider not in {"BEGIN", "END"}:
        return None
    return AttachPoint(provider, word)


def _blank(found: re.Match[str]) -> str:
    """Replace a comment or string by as many characters that mean nothing."""
    return re.sub(r"[^\n]", " ", found.group())


def _blank_comment(found: re.Match[str]) -> str:
    return found.group() if found.group().startswith('"') else _blank(found)
