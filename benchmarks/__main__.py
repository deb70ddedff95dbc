"""
`python -m benchmarks`: one side, once or several times; `invoke bench` compares.
"""

import argparse

from benchmarks.sides import Outcome, Side, Work, run_side


def main() -> None:
    """
    Run a side and print a line a run.
    """
    parser = argparse.ArgumentParser(prog="benchmarks", allow_abbrev=False)
    add = parser.add_argument
    add("kinds", nargs="+", choices=("ours", "stock", "floor", "traced"))
    add("--direction", choices=("download", "upload"), default="download")
    add("--bytes", type=int, default=64_000_000)
    add("--datagram", type=int, default=1200)
    add("--connections", type=int, default=1)
    add("--streams", type=int, default=1)
    add("--answer-every", type=int, default=0, help="datagrams a client's answer, 0: 2 messages")
    add("--repeat", type=int, default=3)
    add("--server-words", default="", help="more words for ours, such as '--max-segments 64'")
    words = parser.parse_args()
    work = Work(
        direction=words.direction,
        total_bytes=words.bytes,
        datagram_bytes=words.datagram,
        connection_count=words.connections,
        stream_count=words.streams,
        answer_every=words.answer_every,
    )
    answered_every = 20.0
    for _ in range(words.repeat):
        for kind in words.kinds:
            is_ours = kind in {"ours", "traced"}
            side = Side(
                label=kind,
                kind="ours" if is_ours else kind,
                words=tuple(words.server_words.split()) if is_ours else (),
                is_traced=kind == "traced",
            )
            run = run_side(side, work, answered_every=answered_every)
            answered_every = run.answered_every
            print(f"{kind:6} {_render(run)}", flush=True)


def _render(run: Outcome) -> str:
    seconds = run.seconds or run.server_ns / 1e9
    return (
        f"{run.cpu_s_per_gb:6.2f} CPU-s/GB {run.mb_per_s:7.1f} MB/s   "
        f"busy: server {run.server_ns / seconds / 1e9:4.0%} "
        f"load {run.load_ns / seconds / 1e9:4.0%}   "
        f"load {run.load_ns / run.total_bytes:5.2f} CPU-s/GB, "
        f"{run.load_received_datagrams:,} in, {run.load_sent_datagrams:,} out, "
        f"{run.load_dropped_datagrams:,} dropped   "
        f"steal {run.steal:.1%} foreign {run.foreign:.1%}"
    )


if __name__ == "__main__":
    main()
