"""
Draws a flame graph: pure, from stacks to one SVG file that any browser shows.

A box is a function, as wide as its share of the samples; what it called stands on
it. The colour is the layer that the time in the box belongs to most. A click on a
box widens it to the whole picture, a click on the lowest brings all back.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from benchmarks.profiling_stacks import Layer, Samples, find_layer

_WIDTH: Final = 1200
_ROW: Final = 17
_HEAD: Final = 60
_LETTER: Final = 6.6  # width of one at 11 px, monospaced
_LEAST_WIDTH: Final = 0.3  # below, a box cannot be seen
_COLOURS: Final = {
    Layer.BUILDING: "#f4a259",
    Layer.RECEIVING: "#e9c46a",
    Layer.AIOQUIC: "#f6d9a8",
    Layer.CRYPTO: "#8cb369",
    Layer.TLS: "#bfd8a5",
    Layer.CALLED: "#c77dff",
    Layer.ENDPOINT: "#5b8fd9",
    Layer.PERF: "#80c4e8",
    Layer.TX: "#4cc9c0",
    Layer.RX: "#9ad9d3",
    Layer.NATIVE: "#7b6fd0",
    Layer.SEND: "#d95d5d",
    Layer.RECEIVE: "#e88f8f",
    Layer.WAIT: "#b8b8b8",
    Layer.OTHER: "#d8d8d8",
}
_SCRIPT: Final = """
const all = [...document.querySelectorAll('g.box')];
function show(x, w) {
  for (const g of all) {
    const [bx, bw] = [+g.dataset.x, +g.dataset.w];
    const left = Math.max(0, (bx - x) / w), right = Math.min(1, (bx + bw - x) / w);
    g.style.display = right - left > 0.0002 ? '' : 'none';
    const [r, t] = [g.children[1], g.children[2]];
    r.setAttribute('x', left * WIDTH); r.setAttribute('width', Math.max(0, right - left) * WIDTH);
    t.setAttribute('x', left * WIDTH + 3);
    const room = Math.floor(((right - left) * WIDTH - 6) / LETTER);
    t.textContent = room < 3 ? '' : g.dataset.n.length > room
      ? g.dataset.n.slice(0, room - 1) + '…' : g.dataset.n;
  }
}
for (const g of all) g.onclick = () => show(+g.dataset.x, +g.dataset.w);
show(0, 1);
"""


@dataclass(slots=True)
class _Node:
    """A function where it was called from, and what it called."""

    count: int = 0
    layers: Counter[Layer] = field(default_factory=Counter)
    below: dict[str, "_Node"] = field(default_factory=dict)


def render_flame_graph(samples: Samples, *, title: str) -> str:
    """
    Draw all stacks.

    Args:
        samples: What was sampled.
        title: Stands above.
    """
    root = _grow(samples)
    height = _HEAD + _ROW * (_depth(root) + 1)
    boxes = list(_boxes(root, "all", x=0.0, whole=max(1, root.count), row=0, height=height))
    script = _SCRIPT.replace("WIDTH", str(_WIDTH)).replace("LETTER", str(_LETTER))
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    font = 'font-family="monospace" font-size="11"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
            f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
            f'<text x="4" y="16" font-size="13">{escape(title)}</text>',
            *_legend(root.layers),
            *boxes,
            f"<script>{escape(script, quote=False)}</script>",
            "</svg>",
            "",
        ]
    )


def _grow(samples: Samples) -> _Node:
    root = _Node()
    for stack in samples.stacks:
        layer = find_layer(stack.frames)
        node = root
        node.count += stack.count
        node.layers[layer] += stack.count
        for frame in stack.frames:
            node = node.below.setdefault(str(frame), _Node())
            node.count += stack.count
            node.layers[layer] += stack.count
    return root


def _depth(root: _Node) -> int:
    depth, level = 0, [root]
    while level := [node for each in level for node in each.below.values()]:
        depth += 1
    return depth


def _boxes(node: _Node, name: str, *, x: float, whole: int, row: int, height: int) -> Iterator[str]:
    width = node.count / whole
    if width * _WIDTH < _LEAST_WIDTH:
        return
    colour = _COLOURS[node.layers.most_common(1)[0][0]] if node.layers else "#eee"
    y = height - _ROW * (row + 1)
    said = escape(f"{name}: {node.count} samples, {width:.1%}")
    yield (
        f'<g class="box" data-x="{x:.6f}" data-w="{width:.6f}" data-n="{escape(name)}">'
        f"<title>{said}</title>"
        f'<rect x="{x * _WIDTH:.2f}" y="{y}" width="{width * _WIDTH:.2f}" height="{_ROW - 1}" '
        f'fill="{colour}" stroke="#fff" stroke-width="0.3"/>'
        f'<text x="{x * _WIDTH + 3:.2f}" y="{y + 12}">{escape(_fit(name, width))}</text></g>'
    )
    for below_name, below in sorted(node.below.items()):
        yield from _boxes(below, below_name, x=x, whole=whole, row=row + 1, height=height)
        x += below.count / whole


def _fit(name: str, width: float) -> str:
    room = int((width * _WIDTH - 6) / _LETTER)
    if room < 3:
        return ""
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _legend(layers: Counter[Layer]) -> Sequence[str]:
    lines = []
    x, y = 4, 34
    for layer, _ in layers.most_common():
        width = int(len(layer.value) * _LETTER) + 28
        if x + width > _WIDTH:
            x, y = 4, y + 16
        lines.append(
            f'<rect x="{x}" y="{y - 9}" width="11" height="11" fill="{_COLOURS[layer]}"/>'
            f'<text x="{x + 15}" y="{y}">{layer.value}</text>'
        )
        x += width
    return lines
