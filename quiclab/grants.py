"""
Asked for and granted are two figures: one row for each, with the reason and the fix.
"""

from pydantic import BaseModel, ConfigDict


class Grant(BaseModel):
    """
    One thing that was asked of the machine, and what it gave.

    Args:
        what: Its name for people, such as "server SO_SNDBUF".
        asked: What was asked for; None when the default was left in place.
        granted: What is in effect.
        is_short: Less (or other) than what was asked is in effect.
        reason: Why, when it is short.
        fix: A command or an option that would change that, or "".
    """

    model_config = ConfigDict(frozen=True)

    what: str
    asked: str | None
    granted: str
    is_short: bool = False
    reason: str = ""
    fix: str = ""
