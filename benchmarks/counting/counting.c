/*
 * Places that callgrind can tell apart in a Python process.
 *
 * Under callgrind a Python call is a call of the interpreter's evaluation loop, one
 * looks like another. The functions below give calls names of their own:
 *
 * - `counted_measured`: nothing outside it is collected (`--toggle-collect`);
 * - `counted_in_aioquic`: what the server asks of aioquic;
 * - `counted_arc_N`: one Python function called by another; N is looked up in `arcs()`.
 *
 * They must stay functions with a frame of their own: not inlined, not folded into
 * one because they look alike, no jump instead of the inner call. Compiled with
 * -fno-optimize-sibling-calls -fno-ipa-icf.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030C0000
#define Py_BUILD_CORE
#include <internal/pycore_frame.h> /* a frame's code; later versions have a call for it */
#undef Py_BUILD_CORE
#endif
#include <valgrind/callgrind.h>

#define OWN_FRAME __attribute__((noinline, noclone, used))

/* measured(callable, *args) ------------------------------------------------------- */

OWN_FRAME PyObject *counted_measured(PyObject *callable, PyObject *const *args, size_t count)
{
    return PyObject_Vectorcall(callable, args, count, NULL);
}

static PyObject *measured(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "measured(callable, *args) needs a callable");
        return NULL;
    }
    return counted_measured(args[0], args + 1, (size_t)count - 1);
}

/* InAioquic: a method that is called through counted_in_aioquic --------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *function;
    vectorcallfunc vectorcall;
} InAioquic;

static int is_in_aioquic; /* its methods call each other: only the outermost call counts */

OWN_FRAME PyObject *counted_in_aioquic(PyObject *function, PyObject *const *args, size_t count,
                                       PyObject *names)
{
    return PyObject_Vectorcall(function, args, count, names);
}

static PyObject *in_aioquic_call(PyObject *self, PyObject *const *args, size_t count,
                                 PyObject *names)
{
    PyObject *function = ((InAioquic *)self)->function;
    PyObject *result;

    if (is_in_aioquic)
        return PyObject_Vectorcall(function, args, count, names);
    is_in_aioquic = 1;
    result = counted_in_aioquic(function, args, count, names);
    is_in_aioquic = 0;
    return result;
}

static PyObject *in_aioquic_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", NULL};
    PyObject *function;
    InAioquic *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &function))
        return NULL;
    self = (InAioquic *)type->tp_alloc(type, 0);
    if (self) {
        self->function = Py_NewRef(function);
        self->vectorcall = in_aioquic_call;
    }
    return (PyObject *)self;
}

static void in_aioquic_free(InAioquic *self)
{
    Py_XDECREF(self->function);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *in_aioquic_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object ? PyMethod_New(self, object) : Py_NewRef(self);
}

static PyTypeObject InAioquicType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "benchmarks.counting._counting.InAioquic",
    .tp_doc = "InAioquic(function): the same function, its instructions counted apart.",
    .tp_basicsize = sizeof(InAioquic),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = in_aioquic_new,
    .tp_dealloc = (destructor)in_aioquic_free,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(InAioquic, vectorcall),
    .tp_descr_get = in_aioquic_bind,
};

/* A clock that goes only when told -------------------------------------------------- */

static double clock_s = 1000.0;

static PyObject *now_s(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyFloat_FromDouble(clock_s);
}

static PyObject *advance_s(PyObject *Py_UNUSED(module), PyObject *step)
{
    double step_s = PyFloat_AsDouble(step);

    if (step_s == -1.0 && PyErr_Occurred())
        return NULL;
    clock_s += step_s;
    Py_RETURN_NONE;
}

/* Arcs: every Python call under a name of its own ------------------------------------ */

#define MOST_ARCS 2048 /* a download has some 250 pairs of caller and called */
#define HASH_SLOTS 8192

typedef struct {
    PyCodeObject *caller; /* NULL: no Python function that is followed */
    PyCodeObject *called;
    int number;
} Arc;

static Arc arcs[HASH_SLOTS];
static int arc_count;
static PyCodeObject *current; /* whose frame runs */

typedef struct _PyInterpreterFrame Frame;
typedef PyObject *(*Trampoline)(PyThreadState *, Frame *, int);

#define ONE(n)                                                                            \
    OWN_FRAME PyObject *counted_arc_##n(PyThreadState *state, Frame *frame, int throws)  \
    {                                                                                     \
        return _PyEval_EvalFrameDefault(state, frame, throws);                            \
    }
#define NAME(n) counted_arc_##n,
#define FOUR(do, n) do(n##0) do(n##1) do(n##2) do(n##3)
#define SIXTEEN(do, n) FOUR(do, n##0) FOUR(do, n##1) FOUR(do, n##2) FOUR(do, n##3)
#define DO64(do, n) SIXTEEN(do, n##0) SIXTEEN(do, n##1) SIXTEEN(do, n##2) SIXTEEN(do, n##3)
#define DO256(do, n) DO64(do, n##0) DO64(do, n##1) DO64(do, n##2) DO64(do, n##3)
#define DO1024(do, n) DO256(do, n##0) DO256(do, n##1) DO256(do, n##2) DO256(do, n##3)

/* Numbered in base four, six digits: counted_arc_000000 to counted_arc_133333. */
DO1024(ONE, 0)
DO1024(ONE, 1)

static const Trampoline trampolines[MOST_ARCS] = {DO1024(NAME, 0) DO1024(NAME, 1)};

static PyCodeObject *code_of(Frame *frame)
{
#if PY_VERSION_HEX < 0x030C0000
    return frame->f_code;
#else
    PyObject *code = PyUnstable_InterpreterFrame_GetCode(frame);

    Py_DECREF(code); /* the frame holds it */
    return (PyCodeObject *)code;
#endif
}

static int find_arc(PyCodeObject *caller, PyCodeObject *called)
{
    size_t hash = ((uintptr_t)caller >> 4) * 31 + ((uintptr_t)called >> 4);

    for (size_t probe = 0; probe < HASH_SLOTS; probe++) {
        Arc *arc = &arcs[(hash + probe) % HASH_SLOTS];

        if (arc->called == called && arc->caller == caller)
            return arc->number;
        if (!arc->called) {
            if (arc_count >= MOST_ARCS)
                return -1;
            Py_XINCREF(caller);
            Py_INCREF(called);
            *arc = (Arc){caller, called, arc_count++};
            return arc->number;
        }
    }
    return -1;
}

static PyObject *follow(PyThreadState *state, Frame *frame, int throws)
{
    PyCodeObject *caller = current;
    PyCodeObject *called = code_of(frame);
    int number = find_arc(caller, called);
    PyObject *result;

    current = called;
    result = (number < 0 ? _PyEval_EvalFrameDefault : trampolines[number])(state, frame, throws);
    current = caller;
    return result;
}

static PyObject *follow_calls(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    current = NULL;
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), follow);
    Py_RETURN_NONE;
}

static PyObject *list_arcs(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(arc_count);

    for (size_t index = 0; list && index < HASH_SLOTS; index++) {
        Arc *arc = &arcs[index];
        PyObject *pair;

        if (!arc->called)
            continue;
        pair = PyTuple_Pack(2, arc->caller ? (PyObject *)arc->caller : Py_None, arc->called);
        if (!pair)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, arc->number, pair);
    }
    return list;
}

/* The module ------------------------------------------------------------------------- */

static PyObject *start(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    CALLGRIND_START_INSTRUMENTATION;
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    CALLGRIND_STOP_INSTRUMENTATION;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"measured", (PyCFunction)(void (*)(void))measured, METH_FASTCALL,
     "measured(callable, *args): call it, and let callgrind count what it takes."},
    {"now_s", now_s, METH_NOARGS, "The time of a clock that goes only when told, seconds."},
    {"advance_s", advance_s, METH_O, "Let that clock go on, seconds."},
    {"follow_calls", follow_calls, METH_NOARGS, "Name every Python call from now on."},
    {"arcs", list_arcs, METH_NOARGS, "(caller's code or None, called code) of each arc, by number."},
    {"start", start, METH_NOARGS, "Let callgrind begin to look at instructions."},
    {"stop", stop, METH_NOARGS, "Let callgrind stop looking, which is quicker."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "benchmarks.counting._counting",
    .m_doc = "Places that callgrind can tell apart in a Python process.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__counting(void)
{
    PyObject *module = PyModule_Create(&definition);

    if (module && PyModule_AddType(module, &InAioquicType) < 0)
        Py_CLEAR(module);
    return module;
}
