/* What the C files of server.udp._native share. */
#ifndef QUICLAB_NATIVE_H
#define QUICLAB_NATIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sendmmsg, recvmmsg, ppoll */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "probes.h"

/* linux/udp.h; older libc headers lack both. */
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SOL_UDP
#define SOL_UDP 17
#endif

/* The kernel cuts a longer vector down to this (UIO_MAXIOV). */
#define MOST_MESSAGES_A_CALL 1024

extern PyTypeObject SenderType;
extern PyTypeObject ReceiverType;

PyObject *record(PyObject *module, PyObject *items);
PyObject *recorded(PyObject *module, PyObject *unused);
PyObject *clear_recorded(PyObject *module, PyObject *unused);
PyObject *read_recorded(PyObject *module, PyObject *unused);

PyObject *extend_train(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);

#endif
