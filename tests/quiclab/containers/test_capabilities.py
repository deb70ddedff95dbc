"""
Promises of quiclab/containers/capabilities.py.
"""

import pytest

from quiclab.containers.capabilities import (
    CAPABILITIES,
    find_missing_for_privileged,
    parse_capability_mask,
    plan_capabilities,
)
from quiclab.errors import MachineError

ALL = frozenset(CAPABILITIES)


def test_mask_of_a_full_set_names_all_41() -> None:
    """The mask of Linux 5.9 and later reads as every name of capability.h."""
    assert parse_capability_mask("000001ffffffffff") == ALL


def test_mask_without_bit_24_lacks_sys_resource_alone() -> None:
    """The bounding set of a machine that withholds CAP_SYS_RESOURCE reads as just that."""
    assert ALL - parse_capability_mask("000001fffeffffff") == {"SYS_RESOURCE"}


def test_capabilities_that_can_be_had_are_asked_for_in_their_order() -> None:
    """Nothing is changed and nothing noted where the engine has everything."""
    plan = plan_capabilities("tracer", ["SYS_ADMIN", "SYS_PTRACE"], bounding_set=ALL)
    assert plan.granted == ("SYS_ADMIN", "SYS_PTRACE")
    assert plan.notes == ()


def test_capabilities_unknown_to_an_old_engine_fall_back_to_sys_admin_with_the_reason() -> None:
    """CAP_BPF and CAP_PERFMON become one CAP_SYS_ADMIN, and the notes say why."""
    plan = plan_capabilities(
        "tracer", ["BPF", "PERFMON"], unknown=frozenset({"BPF", "PERFMON"}), bounding_set=ALL
    )
    assert plan.granted == ("SYS_ADMIN",)
    assert plan.notes == (
        "tracer: CAP_SYS_ADMIN in place of CAP_BPF (the engine does not know it)",
        "tracer: CAP_SYS_ADMIN in place of CAP_PERFMON (the engine does not know it)",
    )


def test_capability_missing_in_the_engine_is_refused_by_name() -> None:
    """The engine's own refusal names nothing, so it is never asked."""
    with pytest.raises(MachineError, match="the tracer needs CAP_SYS_PTRACE"):
        plan_capabilities("tracer", ["SYS_PTRACE"], bounding_set=ALL - {"SYS_PTRACE"})


def test_optional_capability_missing_in_the_engine_is_left_out_with_a_note() -> None:
    """A server without CAP_NET_ADMIN works, with the buffers the kernel allows anyone."""
    plan = plan_capabilities(
        "server", ["NET_ADMIN"], optional=["NET_ADMIN"], bounding_set=ALL - {"NET_ADMIN"}
    )
    assert plan.granted == ()
    assert plan.notes == ("server: works without CAP_NET_ADMIN (the engine does not have it)",)


def test_capabilities_are_asked_for_where_the_engines_own_are_not_known() -> None:
    """An engine on another host decides by itself."""
    assert plan_capabilities("tracer", ["SYS_ADMIN"]).granted == ("SYS_ADMIN",)


@pytest.mark.parametrize(
    ("bounding_set", "missing"),
    [(None, []), (ALL, []), (ALL - {"SYS_RESOURCE"}, ["SYS_RESOURCE"])],
    ids=["not known", "complete", "one withheld"],
)
def test_privileged_needs_every_capability(
    bounding_set: frozenset[str] | None, missing: list[str]
) -> None:
    """What keeps a privileged container from starting is known by name beforehand."""
    assert find_missing_for_privileged(bounding_set) == missing
