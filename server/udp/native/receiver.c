/*
 * Receiver: the memory of an RX ring and the kernel's view of it.
 *
 * Cursors live in Python. `receive` lets the kernel fill a run of slots; `take`
 * turns filled slots into `(address, [datagram, ...], is_cut)`.
 */
#include "native.h"

#include "fire.h"

#include <arpa/inet.h>
#include <sys/mman.h>

#define CONTROL_BYTES CMSG_SPACE(sizeof(int))
/* Address tuples kept for reuse; a flood of addresses empties it, no more. */
#define MOST_ADDRESSES 4096

typedef struct {
    PyObject_HEAD
    uint32_t entries;
    uint32_t payload_bytes;
    struct mmsghdr *headers;          /* 2 * entries, so that a run may pass the ring's end */
    struct iovec *vectors;            /* entries */
    struct sockaddr_storage *names;   /* entries */
    char *controls;                   /* entries * CONTROL_BYTES */
    char *payloads;                   /* entries * payload_bytes, touched when first filled */
    size_t payloads_bytes;
    uint32_t *lengths;                /* entries: what came */
    uint32_t *segments;               /* entries: UDP_GRO's size, 0 when nothing was joined */
    uint8_t *cuts;                    /* entries: MSG_TRUNC */
    PyObject *addresses;              /* sockaddr bytes -> address tuple */
} Receiver;

static void receiver_free(Receiver *self)
{
    if (self->payloads)
        munmap(self->payloads, self->payloads_bytes);
    free(self->headers);
    free(self->vectors);
    free(self->names);
    free(self->controls);
    free(self->lengths);
    free(self->segments);
    free(self->cuts);
    Py_XDECREF(self->addresses);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int receiver_allocate(Receiver *self)
{
    size_t entries = self->entries;
    void *payloads;

    self->headers = calloc(2 * entries, sizeof *self->headers);
    self->vectors = calloc(entries, sizeof *self->vectors);
    self->names = calloc(entries, sizeof *self->names);
    self->controls = calloc(entries, CONTROL_BYTES);
    self->lengths = calloc(entries, sizeof *self->lengths);
    self->segments = calloc(entries, sizeof *self->segments);
    self->cuts = calloc(entries, sizeof *self->cuts);
    self->payloads_bytes = entries * self->payload_bytes;
    payloads = mmap(NULL, self->payloads_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    self->payloads = payloads == MAP_FAILED ? NULL : payloads;
    if (!self->headers || !self->vectors || !self->names || !self->controls || !self->lengths ||
        !self->segments || !self->cuts || !self->payloads) {
        PyErr_NoMemory();
        return -1;
    }
    self->addresses = PyDict_New();
    return self->addresses ? 0 : -1;
}

static PyObject *receiver_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entries", "payload_bytes", NULL};
    unsigned int entries, payload_bytes;
    Receiver *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "II", names, &entries, &payload_bytes))
        return NULL;
    if (entries < 1 || entries > (1u << 20) || payload_bytes < 1 || payload_bytes > 65535) {
        PyErr_Format(PyExc_ValueError,
                     "a receiver of %u entries with %u bytes each cannot be; "
                     "1 to 1048576 entries and 1 to 65535 bytes can",
                     entries, payload_bytes);
        return NULL;
    }
    self = (Receiver *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->entries = entries;
    self->payload_bytes = payload_bytes;
    if (receiver_allocate(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int check_run(Receiver *self, unsigned int first, unsigned int count)
{
    if (first < self->entries && count >= 1 && count <= self->entries)
        return 0;
    PyErr_Format(PyExc_ValueError, "slots %u + %u are not a run of a ring of %u", first, count,
                 self->entries);
    return -1;
}

/* The kernel writes lengths and flags back, so a header is filled before each call. */
static void fill_header(Receiver *self, struct msghdr *header, uint32_t slot)
{
    self->vectors[slot].iov_base = self->payloads + (size_t)slot * self->payload_bytes;
    self->vectors[slot].iov_len = self->payload_bytes;
    header->msg_name = &self->names[slot];
    header->msg_namelen = sizeof self->names[slot];
    header->msg_iov = &self->vectors[slot];
    header->msg_iovlen = 1;
    header->msg_control = self->controls + (size_t)slot * CONTROL_BYTES;
    header->msg_controllen = CONTROL_BYTES;
    header->msg_flags = 0;
}

static void keep_result(Receiver *self, struct msghdr *header, uint32_t slot, size_t length)
{
    self->lengths[slot] = (uint32_t)length;
    self->segments[slot] = 0;
    self->cuts[slot] = (header->msg_flags & MSG_TRUNC) != 0;
    for (struct cmsghdr *control = CMSG_FIRSTHDR(header); control;
         control = CMSG_NXTHDR(header, control)) {
        if (control->cmsg_level == SOL_UDP && control->cmsg_type == UDP_GRO) {
            int segment_bytes;

            memcpy(&segment_bytes, CMSG_DATA(control), sizeof segment_bytes);
            if (segment_bytes > 0)
                self->segments[slot] = (uint32_t)segment_bytes;
        }
    }
}

PyDoc_STRVAR(receiver_receive_doc,
             "receive(fd, first, count) -> messages received, or minus errno\n\n"
             "One recvmmsg that never blocks, into a run of slots.");

static PyObject *receiver_receive(Receiver *self, PyObject *args)
{
    unsigned int first, count;
    struct mmsghdr *headers;
    long received;
    int fd, error;

    if (!PyArg_ParseTuple(args, "iII", &fd, &first, &count) || check_run(self, first, count) < 0)
        return NULL;
    if (count > MOST_MESSAGES_A_CALL)
        count = MOST_MESSAGES_A_CALL;
    headers = self->headers + first;
    for (unsigned int index = 0; index < count; index++)
        fill_header(self, &headers[index].msg_hdr, (first + index) % self->entries);
    fire(MMSG_START_RECV, fd, (int64_t)(uintptr_t)headers, count, 0);
    Py_BEGIN_ALLOW_THREADS
    received = recvmmsg(fd, headers, count, MSG_DONTWAIT, NULL);
    error = received < 0 ? errno : 0;
    Py_END_ALLOW_THREADS
    fire(MMSG_FINISH_RECV, fd, (int64_t)(uintptr_t)headers, received < 0 ? 0 : received, error);
    for (long index = 0; index < received; index++)
        keep_result(self, &headers[index].msg_hdr,
                    (uint32_t)((first + index) % self->entries), headers[index].msg_len);
    return PyLong_FromLong(received < 0 ? -(long)error : received);
}

PyDoc_STRVAR(receiver_receive_one_doc,
             "receive_one(fd, slot) -> 1, or minus errno\n\n"
             "One recvmsg that never blocks, where recvmmsg is refused.");

static PyObject *receiver_receive_one(Receiver *self, PyObject *args)
{
    struct msghdr *header;
    unsigned int slot;
    ssize_t received;
    int fd, error;

    if (!PyArg_ParseTuple(args, "iI", &fd, &slot) || check_run(self, slot, 1) < 0)
        return NULL;
    header = &self->headers[slot].msg_hdr;
    fill_header(self, header, slot);
    fire(MSG_START_RECV, fd, (int64_t)(uintptr_t)header, 0, 0);
    Py_BEGIN_ALLOW_THREADS
    received = recvmsg(fd, header, MSG_DONTWAIT);
    error = received < 0 ? errno : 0;
    Py_END_ALLOW_THREADS
    fire(MSG_FINISH_RECV, fd, (int64_t)(uintptr_t)header, error, 0);
    if (received < 0)
        return PyLong_FromLong(-(long)error);
    keep_result(self, header, slot, (size_t)received);
    return PyLong_FromLong(1);
}

/* What socket.getsockname() would say: 2 parts for IPv4, 4 for IPv6. */
static PyObject *make_address(const struct sockaddr_storage *name)
{
    char text[INET6_ADDRSTRLEN] = "";

    if (name->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)name;

        inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
        return Py_BuildValue("(siII)", text, (int)ntohs(six->sin6_port),
                             (unsigned int)ntohl(six->sin6_flowinfo),
                             (unsigned int)six->sin6_scope_id);
    }
    const struct sockaddr_in *four = (const struct sockaddr_in *)name;

    inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
    return Py_BuildValue("(si)", text, (int)ntohs(four->sin_port));
}

/* A new reference; the same tuple for the same peer. */
static PyObject *find_address(Receiver *self, const struct sockaddr_storage *name)
{
    size_t length = name->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                : sizeof(struct sockaddr_in);
    PyObject *key = PyBytes_FromStringAndSize((const char *)name, (Py_ssize_t)length);
    PyObject *address;

    if (!key)
        return NULL;
    address = PyDict_GetItemWithError(self->addresses, key);
    if (address) {
        Py_INCREF(address);
    } else if (!PyErr_Occurred()) {
        if (PyDict_GET_SIZE(self->addresses) >= MOST_ADDRESSES)
            PyDict_Clear(self->addresses);
        address = make_address(name);
        if (address && PyDict_SetItem(self->addresses, key, address) < 0)
            Py_CLEAR(address);
    }
    Py_DECREF(key);
    return address;
}

/* Cut a slot back into the datagrams the peer sent; only the last may be shorter. */
static PyObject *split_slot(Receiver *self, uint32_t slot)
{
    const char *payload = self->payloads + (size_t)slot * self->payload_bytes;
    size_t length = self->lengths[slot];
    size_t segment_bytes = self->segments[slot] ? self->segments[slot] : length;
    size_t count = length ? (length + segment_bytes - 1) / segment_bytes : 1;
    PyObject *datagrams = PyList_New((Py_ssize_t)count);

    for (size_t index = 0; datagrams && index < count; index++) {
        size_t start = index * segment_bytes;
        size_t bytes = length - start < segment_bytes ? length - start : segment_bytes;
        PyObject *datagram = PyBytes_FromStringAndSize(payload + start, (Py_ssize_t)bytes);

        if (!datagram)
            Py_CLEAR(datagrams);
        else
            PyList_SET_ITEM(datagrams, (Py_ssize_t)index, datagram);
    }
    return datagrams;
}

PyDoc_STRVAR(receiver_take_doc,
             "take(first, count) -> [(address, [datagram, ...], is_cut), ...]\n\n"
             "What a run of filled slots holds. is_cut: it was longer than the slot.");

static PyObject *receiver_take(Receiver *self, PyObject *args)
{
    unsigned int first, count;
    PyObject *messages;

    if (!PyArg_ParseTuple(args, "II", &first, &count) || check_run(self, first, count) < 0)
        return NULL;
    messages = PyList_New((Py_ssize_t)count);
    for (unsigned int index = 0; messages && index < count; index++) {
        uint32_t slot = (first + index) % self->entries;
        PyObject *address = find_address(self, &self->names[slot]);
        PyObject *datagrams = address ? split_slot(self, slot) : NULL;
        PyObject *message = NULL;

        if (datagrams)
            message = PyTuple_Pack(3, address, datagrams, self->cuts[slot] ? Py_True : Py_False);
        Py_XDECREF(address);
        Py_XDECREF(datagrams);
        if (!message)
            Py_CLEAR(messages);
        else
            PyList_SET_ITEM(messages, (Py_ssize_t)index, message);
    }
    return messages;
}

static PyMethodDef receiver_methods[] = {
    {"receive", (PyCFunction)receiver_receive, METH_VARARGS, receiver_receive_doc},
    {"receive_one", (PyCFunction)receiver_receive_one, METH_VARARGS, receiver_receive_one_doc},
    {"take", (PyCFunction)receiver_take, METH_VARARGS, receiver_take_doc},
    {NULL, NULL, 0, NULL},
};

PyTypeObject ReceiverType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "server.udp._native.Receiver",
    .tp_doc = "Receiver(entries, payload_bytes): the memory of an RX ring.",
    .tp_basicsize = sizeof(Receiver),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = receiver_new,
    .tp_dealloc = (destructor)receiver_free,
    .tp_methods = receiver_methods,
};
