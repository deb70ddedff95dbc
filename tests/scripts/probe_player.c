/*
 * Fires the lab's probes in the order it is told, to test scripts against known events.
 *
 * It stands in for any traced program, so it shares no code with the server: the probes
 * are compiled in, in the layout of systemtap's sys/sdt.h (note version 3, no semaphore),
 * as the original's binary has them.
 *
 * Reads lines of "probe-name argument...", all integers, fires each, and at the end of
 * input prints how many it fired.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NOTE(name, arguments)                                                          \
	"990: nop\n"                                                                    \
	".pushsection .note.stapsdt,\"\",\"note\"\n"                                    \
	".balign 4\n"                                                                   \
	".4byte 992f-991f, 994f-993f, 3\n"                                              \
	"991: .asciz \"stapsdt\"\n"                                                     \
	"992: .balign 4\n"                                                              \
	"993: .8byte 990b\n"                                                            \
	".8byte _.stapsdt.base\n"                                                       \
	".8byte 0\n"                                                                    \
	".asciz \"s2n_quic\"\n"                                                         \
	".asciz \"" name "\"\n"                                                         \
	".asciz \"" arguments "\"\n"                                                    \
	"994: .balign 4\n"                                                              \
	".popsection\n"                                                                 \
	".ifndef _.stapsdt.base\n"                                                      \
	".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"         \
	".weak _.stapsdt.base\n"                                                        \
	".hidden _.stapsdt.base\n"                                                      \
	"_.stapsdt.base: .space 1\n"                                                    \
	".size _.stapsdt.base, 1\n"                                                     \
	".popsection\n"                                                                 \
	".endif\n"

#define ARGUMENTS_2 "-8@%0 -8@%1"
#define ARGUMENTS_3 "-8@%0 -8@%1 -8@%2"
#define ARGUMENTS_4 "-8@%0 -8@%1 -8@%2 -8@%3"

#define PLATFORM(X, name, count) X("s2n_quic_platform__" name, count)
#define PROBES(X)                                                                      \
	PLATFORM(X, "socket__io__tx__acquire", 2)                                       \
	PLATFORM(X, "socket__io__tx__write", 4)                                         \
	PLATFORM(X, "socket__io__tx__finish_write", 4)                                  \
	PLATFORM(X, "socket__io__tx__release", 2)                                       \
	PLATFORM(X, "socket__io__rx__acquire", 2)                                       \
	PLATFORM(X, "socket__io__rx__read", 4)                                          \
	PLATFORM(X, "socket__io__rx__finish_read", 4)                                   \
	PLATFORM(X, "socket__io__rx__release", 2)                                       \
	PLATFORM(X, "socket__task__tx__acquire", 2)                                     \
	PLATFORM(X, "socket__task__tx__finish", 2)                                      \
	PLATFORM(X, "socket__task__tx__release", 2)                                     \
	PLATFORM(X, "socket__task__rx__acquire", 2)                                     \
	PLATFORM(X, "socket__task__rx__finish", 2)                                      \
	PLATFORM(X, "socket__task__rx__release", 2)                                     \
	PLATFORM(X, "syscall__mmsg__start_send", 3)                                     \
	PLATFORM(X, "syscall__mmsg__finish_send", 4)                                    \
	PLATFORM(X, "syscall__mmsg__start_recv", 3)                                     \
	PLATFORM(X, "syscall__mmsg__finish_recv", 4)                                    \
	PLATFORM(X, "syscall__msg__start_send", 2)                                      \
	PLATFORM(X, "syscall__msg__finish_send", 3)                                     \
	X("s2n_quic_core__buffer__receive_buffer__alloc", 2)                            \
	X("s2n_quic_core__buffer__receive_buffer__write", 2)                            \
	X("s2n_quic_core__buffer__receive_buffer__pop", 2)                              \
	X("message_sent", 3)

int main(void)
{
	char line[256], name[128];
	int64_t a, b, c, d;
	unsigned long fired_count = 0;

	while (fgets(line, sizeof line, stdin)) {
		a = b = c = d = 0;
		if (sscanf(line, "%127s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, name, &a, &b,
			   &c, &d) < 1)
			continue;
#define FIRE(probe, count)                                                             \
	if (strcmp(name, probe) == 0) {                                                 \
		__asm__ __volatile__(NOTE(probe, ARGUMENTS_##count)                     \
				     : : "nor"(a), "nor"(b), "nor"(c), "nor"(d));       \
		fired_count++;                                                          \
		continue;                                                               \
	}
		PROBES(FIRE)
		fprintf(stderr, "no probe %s\n", name);
		return 2;
	}
	printf("%lu\n", fired_count);
	return 0;
}
