"""
What a role said last, for the line that tells of its end. Pure.
"""


def find_last_words(stderr: str) -> str:
    """
    Choose the line of a role's stderr that tells most: its last error, else its last line.

    bpftrace complains about memlock where the limit cannot be raised, and works.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if "memlock" not in line.lower()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1]
