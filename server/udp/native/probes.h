/*
 * The probe sites, in the order of server/probes.py (a test compares the two).
 *
 * A site is a tiny function made by libstapsdt: one nop, then a return. A
 * tracer overwrites the nop, so calling the site is all that firing takes, and
 * looking at its first bytes tells whether anyone listens.
 */
#ifndef QUICLAB_PROBES_H
#define QUICLAB_PROBES_H

#include <stdint.h>
#include <string.h>

enum probe {
    IO_TX_ACQUIRE, IO_TX_WRITE, IO_TX_FINISH_WRITE, IO_TX_RELEASE,
    IO_RX_ACQUIRE, IO_RX_READ, IO_RX_FINISH_READ, IO_RX_RELEASE,
    RING_CONSUMER_ACQUIRE, RING_CONSUMER_RELEASE,
    RING_PRODUCER_ACQUIRE, RING_PRODUCER_RELEASE,
    TASK_TX_ACQUIRE, TASK_TX_FINISH, TASK_TX_RELEASE,
    TASK_RX_ACQUIRE, TASK_RX_FINISH, TASK_RX_RELEASE,
    MMSG_START_SEND, MMSG_FINISH_SEND, MMSG_START_RECV, MMSG_FINISH_RECV,
    MSG_START_SEND, MSG_FINISH_SEND, MSG_START_RECV, MSG_FINISH_RECV,
    RECEIVE_BUFFER_ALLOC, RECEIVE_BUFFER_WRITE, RECEIVE_BUFFER_POP,
    MESSAGE_SENT,
    PROBE_COUNT
};

extern uintptr_t quiclab_sites[PROBE_COUNT];

/* The probes have at most four arguments; six registers are what both ABIs pass. */
typedef void (*site_function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

static inline void call_site(uintptr_t site, int64_t a, int64_t b, int64_t c, int64_t d)
{
    ((site_function)site)(a, b, c, d, 0, 0);
}

/*
 * Untraced, a site starts with a nop: 0f 1f ... (5 bytes) or 90 on x86-64,
 * d503201f on arm64. A tracer puts a breakpoint there; Linux 6.18 turns it
 * into a call later. Compared with the opcodes and not with a copy taken at
 * start-up, because a tracer may have been there first.
 */
static inline int is_listened_to(uintptr_t site)
{
#if defined(__aarch64__)
    uint32_t opcode;

    memcpy(&opcode, (const void *)site, sizeof opcode);
    return opcode != 0xd503201fu;
#else
    uint8_t opcode = *(const volatile uint8_t *)site;

    return opcode != 0x0f && opcode != 0x90;
#endif
}

#endif
