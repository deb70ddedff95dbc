/*
 * Sender: the kernel's view of a TX ring.
 *
 * The ring itself (slots, cursors) lives in Python. A filled slot holds
 * `(sockaddr bytes, [datagram, ...])`; the I/O vectors built here point straight
 * into those bytes objects, which the caller keeps in their slots until the
 * call has returned.
 */
#include "native.h"

#include "fire.h"

typedef struct {
    PyObject_HEAD
    uint32_t entries;
    uint32_t most_datagrams;     /* of one message */
    struct mmsghdr *headers;     /* 2 * entries, so that a run may pass the ring's end */
    struct iovec *vectors;       /* entries * most_datagrams */
    char *controls;              /* entries * CMSG_SPACE(sizeof(uint16_t)) */
    struct mmsghdr *singles;     /* most_datagrams: one message taken apart */
} Sender;

#define CONTROL_BYTES CMSG_SPACE(sizeof(uint16_t))

static void sender_free(Sender *self)
{
    free(self->headers);
    free(self->vectors);
    free(self->controls);
    free(self->singles);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *sender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entries", "most_datagrams", NULL};
    unsigned int entries, most_datagrams;
    Sender *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "II", names, &entries, &most_datagrams))
        return NULL;
    if (entries < 1 || entries > (1u << 20) || most_datagrams < 1 || most_datagrams > 1024) {
        PyErr_Format(PyExc_ValueError,
                     "a sender of %u entries with %u datagrams each cannot be; "
                     "1 to 1048576 entries and 1 to 1024 datagrams can",
                     entries, most_datagrams);
        return NULL;
    }
    self = (Sender *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->entries = entries;
    self->most_datagrams = most_datagrams;
    self->headers = calloc(2 * (size_t)entries, sizeof *self->headers);
    self->vectors = calloc((size_t)entries * most_datagrams, sizeof *self->vectors);
    self->controls = calloc(entries, CONTROL_BYTES);
    self->singles = calloc(most_datagrams, sizeof *self->singles);
    if (!self->headers || !self->vectors || !self->controls || !self->singles) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

/* The parts of a slot, borrowed; -1 with an exception when it isn't a message. */
static int read_slot(PyObject *slots, uint32_t slot, PyObject **address, PyObject **datagrams)
{
    PyObject *message = PyList_GET_ITEM(slots, slot);

    if (!PyTuple_CheckExact(message) || PyTuple_GET_SIZE(message) != 2 ||
        !PyBytes_CheckExact(PyTuple_GET_ITEM(message, 0)) ||
        !PyList_CheckExact(PyTuple_GET_ITEM(message, 1)) ||
        PyList_GET_SIZE(PyTuple_GET_ITEM(message, 1)) < 1) {
        PyErr_Format(PyExc_TypeError, "slot %u holds no (address bytes, [bytes, ...])", slot);
        return -1;
    }
    *address = PyTuple_GET_ITEM(message, 0);
    *datagrams = PyTuple_GET_ITEM(message, 1);
    return 0;
}

static int fill_vector(struct iovec *vector, PyObject *datagram)
{
    if (!PyBytes_CheckExact(datagram)) {
        PyErr_SetString(PyExc_TypeError, "a datagram must be bytes");
        return -1;
    }
    vector->iov_base = PyBytes_AS_STRING(datagram);
    vector->iov_len = (size_t)PyBytes_GET_SIZE(datagram);
    return 0;
}

/* Describe one slot to the kernel, with UDP_SEGMENT when it holds a train. */
static int fill_header(Sender *self, struct msghdr *header, PyObject *slots, uint32_t slot)
{
    struct iovec *vectors = self->vectors + (size_t)slot * self->most_datagrams;
    PyObject *address, *datagrams;
    Py_ssize_t count;

    if (read_slot(slots, slot, &address, &datagrams) < 0)
        return -1;
    count = PyList_GET_SIZE(datagrams);
    if (count > (Py_ssize_t)self->most_datagrams) {
        PyErr_Format(PyExc_ValueError, "slot %u holds %zd datagrams, and at most %u fit", slot,
                     count, self->most_datagrams);
        return -1;
    }
    for (Py_ssize_t index = 0; index < count; index++)
        if (fill_vector(vectors + index, PyList_GET_ITEM(datagrams, index)) < 0)
            return -1;
    memset(header, 0, sizeof *header);
    header->msg_name = PyBytes_AS_STRING(address);
    header->msg_namelen = (socklen_t)PyBytes_GET_SIZE(address);
    header->msg_iov = vectors;
    header->msg_iovlen = (size_t)count;
    if (count > 1) {
        struct cmsghdr *control;
        uint16_t segment_bytes = (uint16_t)vectors[0].iov_len;

        header->msg_control = self->controls + (size_t)slot * CONTROL_BYTES;
        header->msg_controllen = CONTROL_BYTES;
        control = CMSG_FIRSTHDR(header);
        control->cmsg_level = SOL_UDP;
        control->cmsg_type = UDP_SEGMENT;
        control->cmsg_len = CMSG_LEN(sizeof segment_bytes);
        memcpy(CMSG_DATA(control), &segment_bytes, sizeof segment_bytes);
    }
    return 0;
}

static int check_run(Sender *self, PyObject *slots, unsigned int first, unsigned int count)
{
    if (PyList_CheckExact(slots) && PyList_GET_SIZE(slots) == (Py_ssize_t)self->entries &&
        first < self->entries && count >= 1 && count <= self->entries)
        return 0;
    PyErr_Format(PyExc_ValueError, "slots %u + %u are not a run of a list of %u", first, count,
                 self->entries);
    return -1;
}

/* One sendmmsg between its two probes; messages sent, or minus errno. */
static long send_many(int fd, struct mmsghdr *headers, unsigned int count)
{
    long sent;
    int error;

    fire(MMSG_START_SEND, fd, (int64_t)(uintptr_t)headers, count, 0);
    Py_BEGIN_ALLOW_THREADS
    sent = sendmmsg(fd, headers, count, MSG_DONTWAIT);
    error = sent < 0 ? errno : 0;
    Py_END_ALLOW_THREADS
    fire(MMSG_FINISH_SEND, fd, (int64_t)(uintptr_t)headers, sent < 0 ? 0 : sent, error);
    return sent < 0 ? -(long)error : sent;
}

PyDoc_STRVAR(sender_send_doc,
             "send(fd, slots, first, count) -> messages sent, or minus errno\n\n"
             "One sendmmsg for a run of slots, which may pass the ring's end.");

static PyObject *sender_send(Sender *self, PyObject *args)
{
    unsigned int first, count;
    PyObject *slots;
    int fd;

    if (!PyArg_ParseTuple(args, "iOII", &fd, &slots, &first, &count) ||
        check_run(self, slots, first, count) < 0)
        return NULL;
    if (count > MOST_MESSAGES_A_CALL)
        count = MOST_MESSAGES_A_CALL;
    for (unsigned int index = first; index < first + count; index++)
        if (fill_header(self, &self->headers[index].msg_hdr, slots, index % self->entries) < 0)
            return NULL;
    return PyLong_FromLong(send_many(fd, self->headers + first, count));
}

PyDoc_STRVAR(sender_send_one_doc,
             "send_one(fd, slots, slot) -> 1, or minus errno\n\n"
             "One sendmsg for one slot, where sendmmsg is refused.");

static PyObject *sender_send_one(Sender *self, PyObject *args)
{
    struct msghdr *header;
    unsigned int slot;
    PyObject *slots;
    ssize_t sent;
    int fd, error;

    if (!PyArg_ParseTuple(args, "iOI", &fd, &slots, &slot) ||
        check_run(self, slots, slot, 1) < 0)
        return NULL;
    header = &self->headers[slot].msg_hdr;
    if (fill_header(self, header, slots, slot) < 0)
        return NULL;
    fire(MSG_START_SEND, fd, (int64_t)(uintptr_t)header, 0, 0);
    Py_BEGIN_ALLOW_THREADS
    sent = sendmsg(fd, header, MSG_DONTWAIT);
    error = sent < 0 ? errno : 0;
    Py_END_ALLOW_THREADS
    fire(MSG_FINISH_SEND, fd, (int64_t)(uintptr_t)header, error, 0);
    return PyLong_FromLong(sent < 0 ? -(long)error : 1);
}

PyDoc_STRVAR(sender_send_apart_doc,
             "send_apart(fd, slots, slot) -> datagrams sent, or minus errno\n\n"
             "One sendmmsg with a message for each datagram of one slot: what is left to do\n"
             "with a train when the kernel has just refused GSO.");

static PyObject *sender_send_apart(Sender *self, PyObject *args)
{
    struct iovec *vectors;
    PyObject *slots;
    struct msghdr train;
    unsigned int slot;
    int fd;

    if (!PyArg_ParseTuple(args, "iOI", &fd, &slots, &slot) ||
        check_run(self, slots, slot, 1) < 0 || fill_header(self, &train, slots, slot) < 0)
        return NULL;
    vectors = train.msg_iov;
    for (size_t index = 0; index < train.msg_iovlen; index++) {
        struct msghdr *header = &self->singles[index].msg_hdr;

        memset(header, 0, sizeof *header);
        header->msg_name = train.msg_name;
        header->msg_namelen = train.msg_namelen;
        header->msg_iov = vectors + index;
        header->msg_iovlen = 1;
    }
    return PyLong_FromLong(send_many(fd, self->singles, (unsigned int)train.msg_iovlen));
}

/*
 * What server.udp.batch.extend_train does, which the tests compare it with: a sixth of
 * Python's instructions, once a message.
 */
PyObject *extend_train(PyObject *module, PyObject *const *args, Py_ssize_t arg_count)
{
    Py_ssize_t start, most_datagrams, most_bytes, first_bytes;
    PyObject *train, *datagrams;

    (void)module;
    if (arg_count != 5 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "extend_train takes two lists and three integers");
    train = args[0];
    datagrams = args[1];
    start = PyLong_AsSsize_t(args[2]);
    most_datagrams = PyLong_AsSsize_t(args[3]);
    most_bytes = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || start >= PyList_GET_SIZE(datagrams))
        return PyErr_Format(PyExc_IndexError, "there is no datagram %zd of %zd", start,
                            PyList_GET_SIZE(datagrams));
    first_bytes = PyObject_Length(PyList_GET_SIZE(train) ? PyList_GET_ITEM(train, 0)
                                                         : PyList_GET_ITEM(datagrams, start));
    if (first_bytes < 0)
        return NULL;
    if (PyList_GET_SIZE(train) >= most_datagrams) /* lowered since it was begun */
        Py_RETURN_TRUE;
    do {
        Py_ssize_t total_bytes = PyList_GET_SIZE(train) * first_bytes;
        Py_ssize_t bytes = PyObject_Length(PyList_GET_ITEM(datagrams, start));

        if (bytes < 0)
            return NULL;
        if (PyList_GET_SIZE(train) && (bytes > first_bytes || total_bytes + bytes > most_bytes))
            Py_RETURN_TRUE;
        if (PyList_Append(train, PyList_GET_ITEM(datagrams, start)) < 0)
            return NULL;
        /* Closed as soon as no full datagram fits, not when one is turned away: else a
         * finished message would wait until the next one has been built. */
        if (bytes < first_bytes || PyList_GET_SIZE(train) >= most_datagrams ||
            total_bytes + bytes + first_bytes > most_bytes)
            Py_RETURN_TRUE;
    } while (++start < PyList_GET_SIZE(datagrams));
    Py_RETURN_FALSE;
}

static PyMethodDef sender_methods[] = {
    {"send", (PyCFunction)sender_send, METH_VARARGS, sender_send_doc},
    {"send_one", (PyCFunction)sender_send_one, METH_VARARGS, sender_send_one_doc},
    {"send_apart", (PyCFunction)sender_send_apart, METH_VARARGS, sender_send_apart_doc},
    {NULL, NULL, 0, NULL},
};

PyTypeObject SenderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "server.udp._native.Sender",
    .tp_doc = "Sender(entries, most_datagrams): the kernel's view of a TX ring.",
    .tp_basicsize = sizeof(Sender),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = sender_new,
    .tp_dealloc = (destructor)sender_free,
    .tp_methods = sender_methods,
};
