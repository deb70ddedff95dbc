#include "machine.h"

#include <elf.h>

/* Little-endian tables below; both machines are. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "libstapsdt needs a little-endian host");

#define WORDS "probe provider: give the full path of a program that can run, then its arguments\n"
#define WORDS_BYTES (sizeof(WORDS) - 1)
_Static_assert(WORDS_BYTES < 256, "the entries below carry the length in one byte");

const char stapsdt_entry_words[] = WORDS;
const size_t stapsdt_entry_words_bytes = WORDS_BYTES;

/*
 * execve(argv[1], argv + 1, envp); when that is not possible the words above,
 * and exit status 127, or 2 when no program was given. The stack at entry holds
 * argc, argv[0] ... argv[argc - 1], NULL, envp ... (the ABI of both machines).
 */
static const uint8_t x86_64_entry[] = {
    0x48, 0x8b, 0x3c, 0x24,                   /* mov rdi, [rsp] */
    0x48, 0x83, 0xff, 0x02,                   /* cmp rdi, 2 */
    0x7c, 0x1d,                               /* jl usage */
    0x48, 0x8d, 0x74, 0x24, 0x10,             /* lea rsi, [rsp + 16] */
    0x48, 0x8d, 0x54, 0xfc, 0x10,             /* lea rdx, [rsp + rdi * 8 + 16] */
    0x48, 0x8b, 0x7c, 0x24, 0x10,             /* mov rdi, [rsp + 16] */
    0xb8, 0x3b, 0x00, 0x00, 0x00,             /* mov eax, 59 (execve) */
    0x0f, 0x05,                               /* syscall */
    0xbb, 0x7f, 0x00, 0x00, 0x00,             /* mov ebx, 127 */
    0xeb, 0x05,                               /* jmp say */
    0xbb, 0x02, 0x00, 0x00, 0x00,             /* usage: mov ebx, 2 */
    0xbf, 0x02, 0x00, 0x00, 0x00,             /* say: mov edi, 2 */
    0x48, 0x8d, 0x35, 0x17, 0x00, 0x00, 0x00, /* lea rsi, [rip + words] */
    0xba, WORDS_BYTES, 0x00, 0x00, 0x00,      /* mov edx, bytes of words */
    0xb8, 0x01, 0x00, 0x00, 0x00,             /* mov eax, 1 (write) */
    0x0f, 0x05,                               /* syscall */
    0x89, 0xdf,                               /* mov edi, ebx */
    0xb8, 0xe7, 0x00, 0x00, 0x00,             /* mov eax, 231 (exit_group) */
    0x0f, 0x05,                               /* syscall */
    0x0f, 0x0b,                               /* ud2; words follow */
};

static const uint32_t aarch64_entry[] = {
    0xf94003e3,                      /* ldr x3, [sp] */
    0xf100087f,                      /* cmp x3, #2 */
    0x5400010b,                      /* b.lt usage */
    0xf9400be0,                      /* ldr x0, [sp, #16] */
    0x910043e1,                      /* add x1, sp, #16 */
    0x8b030c22,                      /* add x2, x1, x3, lsl #3 */
    0xd2801ba8,                      /* mov x8, #221 (execve) */
    0xd4000001,                      /* svc #0 */
    0xd2800fe4,                      /* mov x4, #127 */
    0x14000002,                      /* b say */
    0xd2800044,                      /* usage: mov x4, #2 */
    0xd2800040,                      /* say: mov x0, #2 */
    0x10000101,                      /* adr x1, words */
    0xd2800002 | (WORDS_BYTES << 5), /* mov x2, bytes of words */
    0xd2800808,                      /* mov x8, #64 (write) */
    0xd4000001,                      /* svc #0 */
    0xaa0403e0,                      /* mov x0, x4 */
    0xd2800bc8,                      /* mov x8, #94 (exit_group) */
    0xd4000001,                      /* svc #0 */
    0xd4200000,                      /* brk #0; words follow */
};

/*
 * One nop of 5 bytes: uprobes of Linux 6.18 replace it by a call, older ones by
 * int3. The call writes below the stack pointer, which is safe here: a site is
 * called as a function, keeps its arguments in registers and has no red zone.
 */
static const uint8_t x86_64_site[] = {0x0f, 0x1f, 0x44, 0x00, 0x00, /* nop */ 0xc3 /* ret */};

static const uint8_t aarch64_site[] = {
    0x1f, 0x20, 0x03, 0xd5, /* nop */
    0xc0, 0x03, 0x5f, 0xd6, /* ret */
};

static const char *const x86_64_registers_8[] = {"%rdi", "%rsi", "%rdx", "%rcx", "%r8", "%r9"};
static const char *const x86_64_registers_4[] = {"%edi", "%esi", "%edx", "%ecx", "%r8d", "%r9d"};
static const char *const x86_64_registers_2[] = {"%di", "%si", "%dx", "%cx", "%r8w", "%r9w"};
static const char *const x86_64_registers_1[] = {"%dil", "%sil", "%dl", "%cl", "%r8b", "%r9b"};

/* Tracers know x0 to x30 only; the size before the @ says how much counts. */
static const char *const aarch64_registers[] = {"x0", "x1", "x2", "x3", "x4", "x5"};

static const stapsdt_machine machines[] = {
    {
        .machine = EM_X86_64,
        .page_bytes = 4096,
        .entry = x86_64_entry,
        .entry_bytes = sizeof(x86_64_entry),
        .site = x86_64_site,
        .site_bytes = sizeof(x86_64_site),
        .site_nop_bytes = 5,
        .registers = {x86_64_registers_1, x86_64_registers_2, x86_64_registers_4,
                      x86_64_registers_8},
    },
    {
        .machine = EM_AARCH64,
        .page_bytes = 65536,
        .entry = aarch64_entry,
        .entry_bytes = sizeof(aarch64_entry),
        .site = aarch64_site,
        .site_bytes = sizeof(aarch64_site),
        .site_nop_bytes = 4,
        .registers = {aarch64_registers, aarch64_registers, aarch64_registers, aarch64_registers},
    },
};

const stapsdt_machine *stapsdt_find_machine(int machine)
{
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++)
        if (machines[i].machine == machine)
            return &machines[i];
    return NULL;
}
