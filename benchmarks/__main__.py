"""
`python -m benchmarks`: one side, once or several times; `invoke bench` compares.
"""

import argparse

from benchmarks.sides import Side, Work, run_side


def main() -> None:
    """
    Run a side and print a line a run.
    """
    parser = argparse.ArgumentParser(prog="benchmarks", allow_abbrev=False)
    add = parser.add_argument
    add("kinds", nargs="+", choices=("ours", "stock"))
    add("--direction", choices=("download", "upload"), default="download")
    add("--bytes", type=int, default=64_000_000)
    add("--datagram", type=int, default=1200)
    add("--connections", type=int, default=1)
    add("--streams", type=int, default=1)
    add("--repeat", type=int, default=3)
    add("--server-words", default="", help="more words for ours, such as '--max-segments 64'")
    words = parser.parse_args()
    work = Work(
        direction=words.direction,
        total_bytes=words.bytes,
        datagram_bytes=words.datagram,
        connection_count=words.connections,
        stream_count=words.streams,
    )
    for _ in range(words.repeat):
        for kind in words.kinds:
            extra = tuple(words.server_words.split()) if kind == "ours" else ()
            run = run_side(Side(kind=kind, words=extra), work)
            foreign_ns = run.busy_ns - run.server_ns - run.load_ns
            print(
                f"{kind:6} {run.server_cpu_s_per_gb:6.2f} CPU-s/GB {run.mb_per_s:7.1f} MB/s   "
                f"busy: server {run.server_ns / run.seconds / 1e9:4.0%} "
                f"load {run.load_ns / run.seconds / 1e9:4.0%}   "
                f"load {run.load_cpu_s_per_gb:5.2f} CPU-s/GB, {run.load_received_datagrams:,} in, "
                f"{run.load_sent_datagrams:,} out, {run.load_dropped_datagrams:,} dropped   "
                f"steal {run.steal_ns / run.lasted_s / 1e9:.1%} "
                f"foreign {foreign_ns / run.lasted_s / 1e9:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
