/*
 * server.udp._native: the system calls of the hot path and the probe sites.
 *
 * Everything that can be decided in Python is decided there; this module only
 * makes calls, so that one process pays neither ctypes nor a copy for them.
 */
#include "native.h"

#include "fire.h"

#include <poll.h>
#include <time.h>

uintptr_t quiclab_sites[PROBE_COUNT];

PyDoc_STRVAR(set_sites_doc,
             "set_sites(addresses)\n\n"
             "Tell where the probe sites are, in probe order; 0 is a probe that isn't there.");

static PyObject *set_sites(PyObject *module, PyObject *addresses)
{
    uintptr_t sites[PROBE_COUNT];
    PyObject *items = PySequence_Fast(addresses, "addresses must be a sequence");
    Py_ssize_t count;

    (void)module;
    if (!items)
        return NULL;
    count = PySequence_Fast_GET_SIZE(items);
    for (Py_ssize_t index = 0; index < count && index < PROBE_COUNT; index++)
        sites[index] =
            (uintptr_t)PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(items, index));
    Py_DECREF(items);
    if (PyErr_Occurred())
        return NULL;
    if (count != PROBE_COUNT)
        return PyErr_Format(PyExc_ValueError, "%zd sites were given, and there are %d probes",
                            count, (int)PROBE_COUNT);
    memcpy(quiclab_sites, sites, sizeof sites);
    Py_RETURN_NONE;
}

static uint64_t find_traced(void)
{
    uint64_t mask = 0;

    for (int index = 0; index < PROBE_COUNT; index++)
        if (quiclab_sites[index] && is_listened_to(quiclab_sites[index]))
            mask |= 1ull << index;
    return mask;
}

PyDoc_STRVAR(traced_doc,
             "traced() -> int\n\n"
             "Bit n is set while a tracer sits at the site of probe n.");

static PyObject *traced(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(find_traced());
}

PyDoc_STRVAR(listening_doc,
             "listening() -> int\n\n"
             "Bit n is set while someone traces probe n, or while it is recorded.");

static PyObject *listening(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(find_traced() | quiclab_recorded);
}

PyDoc_STRVAR(record_doc,
             "record(rules)\n\n"
             "Record events in this process from now on, from zero; [] ends it. A rule is a\n"
             "tuple: probe, kind (0 count, 1 hist, 2 start, 3 elapsed), map, argument,\n"
             "where_argument (-1: always), where_is_equal, where_value, table, two arguments\n"
             "that make the key, and the map that counts ends without a start.");
PyDoc_STRVAR(recorded_doc, "recorded() -> int\n\nBit n is set while probe n is recorded.");
PyDoc_STRVAR(clear_recorded_doc, "clear_recorded()\n\nRecord from zero; starts are forgotten.");
PyDoc_STRVAR(read_recorded_doc,
             "read_recorded() -> ([(count, own, least, most), ...], widths, largest_width_ns,\n"
             "events, lost starts)\n\n"
             "Histograms are lists of 66 counts: below 0, 0, 1, 2 to 3, 4 to 7 and so on.");

PyDoc_STRVAR(fire_doc, "fire(probe, *arguments)\n\nFire one probe with up to four integers.");

static PyObject *fire_probe(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t values[5] = {0};

    (void)module;
    if (count < 1 || count > 5)
        return PyErr_Format(PyExc_TypeError, "fire takes a probe and up to 4 integers, not %zd",
                            count);
    for (Py_ssize_t index = 0; index < count; index++)
        values[index] = PyLong_AsLongLong(args[index]);
    if (PyErr_Occurred())
        return NULL;
    if (values[0] < 0 || values[0] >= PROBE_COUNT)
        return PyErr_Format(PyExc_ValueError, "there is no probe %lld", (long long)values[0]);
    fire((enum probe)values[0], values[1], values[2], values[3], values[4]);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fire_segments_doc,
             "fire_segments(probe, channel, message, first_index, datagrams)\n\n"
             "Fire io tx write or io rx read once for each datagram.");

static PyObject *fire_segments(PyObject *module, PyObject *args)
{
    long long channel, message, first_index;
    PyObject *datagrams;
    int probe;

    (void)module;
    if (!PyArg_ParseTuple(args, "iLLLO!", &probe, &channel, &message, &first_index, &PyList_Type,
                          &datagrams))
        return NULL;
    if (probe < 0 || probe >= PROBE_COUNT)
        return PyErr_Format(PyExc_ValueError, "there is no probe %d", probe);
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(datagrams); index++) {
        Py_ssize_t bytes = PyObject_Length(PyList_GET_ITEM(datagrams, index));

        if (bytes < 0)
            return NULL;
        fire((enum probe)probe, channel, message, first_index + index, bytes);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fire_slots_doc,
             "fire_slots(probe, channel, first, count, capacity)\n\n"
             "Fire task tx finish or task rx finish once for each slot of a run.");

static PyObject *fire_slots(PyObject *module, PyObject *args)
{
    long long channel;
    unsigned int first, count, capacity;
    int probe;

    (void)module;
    if (!PyArg_ParseTuple(args, "iLIII", &probe, &channel, &first, &count, &capacity))
        return NULL;
    if (probe < 0 || probe >= PROBE_COUNT || capacity < 1)
        return PyErr_Format(PyExc_ValueError, "there is no probe %d or no slot of %u", probe,
                            capacity);
    for (unsigned int index = 0; index < count; index++)
        fire((enum probe)probe, channel, (first + index) % capacity, 0, 0);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fire_stored_doc,
             "fire_stored(offset, written, grown_at, grown, popped_at, popped)\n\n"
             "Fire receive buffer write, alloc and pop, those whose number of bytes is above 0.");

static PyObject *fire_stored(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    static const enum probe order[] = {RECEIVE_BUFFER_WRITE, RECEIVE_BUFFER_ALLOC,
                                       RECEIVE_BUFFER_POP};
    int64_t values[6];

    (void)module;
    if (count != 6)
        return PyErr_Format(PyExc_TypeError, "fire_stored takes 6 integers, not %zd", count);
    for (Py_ssize_t index = 0; index < count; index++)
        values[index] = PyLong_AsLongLong(args[index]);
    if (PyErr_Occurred())
        return NULL;
    for (int index = 0; index < 3; index++)
        if (values[2 * index + 1] > 0)
            fire(order[index], values[2 * index], values[2 * index + 1], 0, 0);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fire_sent_doc,
             "fire_sent(channel, first, count, capacity, began_ns)\n\n"
             "Fire message sent once for each slot of a run, with the time since its entry in\n"
             "began_ns (CLOCK_MONOTONIC), which is taken out; 0 for a slot that has none.");

/* Takes a slot's beginning out of the dictionary: ns, 0 when it isn't there, -1 on error. */
static long long pop_beginning(PyObject *began_ns, uint32_t slot)
{
    PyObject *key = PyLong_FromUnsignedLong(slot);
    PyObject *value = key ? PyDict_GetItemWithError(began_ns, key) : NULL;
    long long ns = value ? PyLong_AsLongLong(value) : 0;

    if (value && !PyErr_Occurred())
        PyDict_DelItem(began_ns, key);
    Py_XDECREF(key);
    return PyErr_Occurred() ? -1 : ns;
}

static PyObject *fire_sent(PyObject *module, PyObject *args)
{
    long long channel;
    unsigned int first, count, capacity;
    PyObject *began_ns;
    struct timespec now;
    int64_t now_ns;

    (void)module;
    if (!PyArg_ParseTuple(args, "LIIIO!", &channel, &first, &count, &capacity, &PyDict_Type,
                          &began_ns))
        return NULL;
    if (capacity < 1)
        return PyErr_Format(PyExc_ValueError, "there is no slot of %u", capacity);
    clock_gettime(CLOCK_MONOTONIC, &now);
    now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    for (unsigned int index = 0; index < count; index++) {
        uint32_t slot = (first + index) % capacity;
        long long began = pop_beginning(began_ns, slot);

        if (began < 0)
            return NULL;
        fire(MESSAGE_SENT, channel, slot, began ? now_ns - began : 0, 0);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(wait_doc,
             "wait(fds, events, timeout_ns) -> [events that happened, ...]\n\n"
             "ppoll; a negative timeout waits forever. Interrupted by a signal it runs the\n"
             "handlers and answers that nothing happened.");

/* What a process may open at most where nobody raised fs.nr_open. */
#define MOST_FDS 1048576

static PyObject *wait_for(PyObject *module, PyObject *args)
{
    struct pollfd *polled;
    struct timespec timeout;
    PyObject *fds, *events, *happened = NULL;
    long long timeout_ns;
    Py_ssize_t count;
    int ready, error;

    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!L", &PyList_Type, &fds, &PyList_Type, &events, &timeout_ns))
        return NULL;
    count = PyList_GET_SIZE(fds);
    if (count != PyList_GET_SIZE(events) || count > MOST_FDS)
        return PyErr_Format(PyExc_ValueError, "%zd descriptors with %zd events; at most %d pairs",
                            count, PyList_GET_SIZE(events), MOST_FDS);
    polled = PyMem_New(struct pollfd, (size_t)count);
    if (!polled)
        return PyErr_NoMemory();
    for (Py_ssize_t index = 0; index < count; index++) {
        polled[index].fd = (int)PyLong_AsLong(PyList_GET_ITEM(fds, index));
        polled[index].events = (short)PyLong_AsLong(PyList_GET_ITEM(events, index));
        polled[index].revents = 0;
    }
    if (PyErr_Occurred())
        goto out;
    timeout.tv_sec = (time_t)(timeout_ns / 1000000000);
    timeout.tv_nsec = (long)(timeout_ns % 1000000000);
    Py_BEGIN_ALLOW_THREADS
    ready = ppoll(polled, (nfds_t)count, timeout_ns < 0 ? NULL : &timeout, NULL);
    error = ready < 0 ? errno : 0;
    Py_END_ALLOW_THREADS
    if (error && error != EINTR) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        goto out;
    }
    if (error && PyErr_CheckSignals() < 0)
        goto out;
    happened = PyList_New(count);
    for (Py_ssize_t index = 0; happened && index < count; index++)
        PyList_SET_ITEM(happened, index, PyLong_FromLong(error ? 0 : polled[index].revents));
out:
    PyMem_Free(polled);
    return happened;
}

PyDoc_STRVAR(refused_doc,
             "refused(fd) -> errno\n\n"
             "Why sendmmsg or recvmmsg cannot be used, or 0. Asked with empty vectors, which\n"
             "move nothing: a seccomp profile refuses the call before it is looked at.");

static PyObject *refused(PyObject *module, PyObject *args)
{
    int fd, error = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "i", &fd))
        return NULL;
    if (sendmmsg(fd, NULL, 0, MSG_DONTWAIT) < 0)
        error = errno;
    else if (recvmmsg(fd, NULL, 0, MSG_DONTWAIT, NULL) < 0)
        error = errno;
    return PyLong_FromLong(error);
}

PyDoc_STRVAR(extend_train_doc,
             "extend_train(train, datagrams, start, most_datagrams, most_bytes) -> is_closed\n\n"
             "Append to one list, from another, what goes into the same message.");

static PyMethodDef module_methods[] = {
    {"set_sites", set_sites, METH_O, set_sites_doc},
    {"listening", listening, METH_NOARGS, listening_doc},
    {"traced", traced, METH_NOARGS, traced_doc},
    {"record", record, METH_O, record_doc},
    {"recorded", recorded, METH_NOARGS, recorded_doc},
    {"clear_recorded", clear_recorded, METH_NOARGS, clear_recorded_doc},
    {"read_recorded", read_recorded, METH_NOARGS, read_recorded_doc},
    {"fire", (PyCFunction)(void (*)(void))fire_probe, METH_FASTCALL, fire_doc},
    {"fire_segments", fire_segments, METH_VARARGS, fire_segments_doc},
    {"fire_slots", fire_slots, METH_VARARGS, fire_slots_doc},
    {"fire_stored", (PyCFunction)(void (*)(void))fire_stored, METH_FASTCALL, fire_stored_doc},
    {"fire_sent", fire_sent, METH_VARARGS, fire_sent_doc},
    {"extend_train", (PyCFunction)(void (*)(void))extend_train, METH_FASTCALL, extend_train_doc},
    {"wait", wait_for, METH_VARARGS, wait_doc},
    {"refused", refused, METH_VARARGS, refused_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "server.udp._native",
    .m_doc = "The system calls of the hot path and the probe sites.",
    .m_size = -1,
    .m_methods = module_methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);

    if (!module)
        return NULL;
    if (PyModule_AddType(module, &SenderType) < 0 || PyModule_AddType(module, &ReceiverType) < 0 ||
        PyModule_AddIntConstant(module, "PROBE_COUNT", PROBE_COUNT) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
