/*
 * The second witness: what a tracer's maps should hold, counted at the same probe points.
 *
 * While a probe is recorded, firing it takes the time, calls its site, takes the time
 * again, and applies the rules of that probe: count an event, put an argument into a
 * histogram, remember a start, measure from a start to its end. A tracer that watches the
 * same site takes its own time somewhere between the two, so what it can have measured
 * has bounds, event by event: `least` and `most` hold them.
 *
 * Histograms are bpftrace's: below 0, 0, 1, then a power of two for each bucket.
 */
#include "native.h"

#include <time.h>

#define MOST_RULES_A_PROBE 8
#define MOST_MAPS 64
#define MOST_TABLES 16
#define BUCKET_COUNT 66
#define SLOT_COUNT (1u << 16) /* starts that may wait for their end in one table */

enum kind { KIND_COUNT, KIND_HIST, KIND_START, KIND_ELAPSED };

struct rule {
    int kind, map, argument;
    int where_argument, where_is_equal; /* argument -1: always */
    long long where_value;
    int table, key_a, key_b; /* arguments that make the key */
    int unmatched;           /* map that counts ends without a start */
};

struct map {
    uint64_t count;
    uint64_t own[BUCKET_COUNT], least[BUCKET_COUNT], most[BUCKET_COUNT];
};

struct start {
    int64_t a, b;
    int64_t before_ns, after_ns; /* before_ns is 0 in a slot that is free */
};

struct table {
    struct start *slots;
    uint32_t used_count;
};

uint64_t quiclab_recorded;

void quiclab_record(enum probe probe, int64_t a, int64_t b, int64_t c, int64_t d);

static struct rule rules[PROBE_COUNT][MOST_RULES_A_PROBE];
static int rule_counts[PROBE_COUNT];
static struct map maps[MOST_MAPS];
static struct table tables[MOST_TABLES];
static int map_count;
static uint64_t event_count, lost_start_count, widths[BUCKET_COUNT];
static int64_t largest_width_ns;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static unsigned int bucket_of(int64_t value)
{
    if (value < 0)
        return 0;
    if (value == 0)
        return 1;
    return 2 + (63 - (unsigned int)__builtin_clzll((unsigned long long)value));
}

static uint32_t slot_of(int64_t a, int64_t b)
{
    uint64_t mixed = ((uint64_t)a * 0x9e3779b97f4a7c15u) ^ ((uint64_t)b * 0xc2b2ae3d27d4eb4fu);

    return (uint32_t)(mixed >> 40) & (SLOT_COUNT - 1);
}

/* The slot of a key, or the free one where it would go. */
static uint32_t find_slot(const struct table *table, int64_t a, int64_t b)
{
    uint32_t index = slot_of(a, b);

    while (table->slots[index].before_ns &&
           (table->slots[index].a != a || table->slots[index].b != b))
        index = (index + 1) & (SLOT_COUNT - 1);
    return index;
}

static void put_start(struct table *table, int64_t a, int64_t b, int64_t before_ns,
                      int64_t after_ns)
{
    struct start *slot = table->slots + find_slot(table, a, b);

    if (!slot->before_ns) {
        if (table->used_count >= SLOT_COUNT / 2) {
            lost_start_count++;
            return;
        }
        table->used_count++;
    }
    *slot = (struct start){a, b, before_ns, after_ns};
}

/* Take a start out, and close the gap: a later one of the same run of slots moves up. */
static int take_start(struct table *table, int64_t a, int64_t b, struct start *found)
{
    uint32_t hole = find_slot(table, a, b), index = hole;

    if (!table->slots[hole].before_ns)
        return 0;
    *found = table->slots[hole];
    table->used_count--;
    for (;;) {
        uint32_t home;

        index = (index + 1) & (SLOT_COUNT - 1);
        if (!table->slots[index].before_ns)
            break;
        home = slot_of(table->slots[index].a, table->slots[index].b);
        if (((index - home) & (SLOT_COUNT - 1)) < ((index - hole) & (SLOT_COUNT - 1)))
            continue; /* it stands at or behind its home, and may not move before it */
        table->slots[hole] = table->slots[index];
        hole = index;
    }
    table->slots[hole].before_ns = 0;
    return 1;
}

static void note_width(int64_t width_ns)
{
    widths[bucket_of(width_ns)]++;
    if (width_ns > largest_width_ns)
        largest_width_ns = width_ns;
}

static void apply(const struct rule *rule, const int64_t *values, int64_t before_ns,
                  int64_t after_ns)
{
    struct map *map = maps + rule->map;
    struct start start;

    if (rule->where_argument >= 0 &&
        (values[rule->where_argument] == rule->where_value) != rule->where_is_equal)
        return;
    switch ((enum kind)rule->kind) {
    case KIND_COUNT:
        map->count++;
        break;
    case KIND_HIST:
        map->count++;
        map->own[bucket_of(values[rule->argument])]++;
        break;
    case KIND_START:
        put_start(tables + rule->table, values[rule->key_a], values[rule->key_b], before_ns,
                  after_ns);
        break;
    case KIND_ELAPSED:
        if (!take_start(tables + rule->table, values[rule->key_a], values[rule->key_b],
                        &start)) {
            maps[rule->unmatched].count++;
            break;
        }
        map->count++;
        map->own[bucket_of(before_ns - start.before_ns)]++;
        map->least[bucket_of(before_ns - start.after_ns)]++;
        map->most[bucket_of(after_ns - start.before_ns)]++;
        note_width((after_ns - before_ns) + (start.after_ns - start.before_ns));
        break;
    }
}

void quiclab_record(enum probe probe, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t values[4] = {a, b, c, d};
    int64_t before_ns = now_ns(), after_ns = before_ns;

    if (quiclab_sites[probe]) {
        call_site(quiclab_sites[probe], a, b, c, d);
        after_ns = now_ns();
    }
    event_count++;
    for (int index = 0; index < rule_counts[probe]; index++)
        apply(&rules[probe][index], values, before_ns, after_ns);
}

static void clear(void)
{
    memset(maps, 0, sizeof maps);
    memset(widths, 0, sizeof widths);
    event_count = lost_start_count = 0;
    largest_width_ns = 0;
    for (int index = 0; index < MOST_TABLES; index++)
        if (tables[index].slots) {
            memset(tables[index].slots, 0, SLOT_COUNT * sizeof(struct start));
            tables[index].used_count = 0;
        }
}

static int is_one_of(long long value, long long least, long long most)
{
    return value >= least && value < most;
}

static int read_rule(PyObject *item, int *probe, struct rule *rule)
{
    if (!PyArg_ParseTuple(item, "iiiiiiLiiii", probe, &rule->kind, &rule->map, &rule->argument,
                          &rule->where_argument, &rule->where_is_equal, &rule->where_value,
                          &rule->table, &rule->key_a, &rule->key_b, &rule->unmatched))
        return -1;
    if (is_one_of(*probe, 0, PROBE_COUNT) && is_one_of(rule->kind, 0, KIND_ELAPSED + 1) &&
        is_one_of(rule->map, 0, MOST_MAPS) && is_one_of(rule->argument, 0, 4) &&
        is_one_of(rule->where_argument, -1, 4) && is_one_of(rule->table, 0, MOST_TABLES) &&
        is_one_of(rule->key_a, 0, 4) && is_one_of(rule->key_b, 0, 4) &&
        is_one_of(rule->unmatched, 0, MOST_MAPS) && rule_counts[*probe] < MOST_RULES_A_PROBE)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a rule is out of bounds");
    return -1;
}

static int add_rule(PyObject *item)
{
    struct rule rule = {0};
    int probe;

    if (read_rule(item, &probe, &rule) < 0)
        return -1;
    if (rule.kind == KIND_START || rule.kind == KIND_ELAPSED) {
        struct table *table = tables + rule.table;

        if (!table->slots)
            table->slots = calloc(SLOT_COUNT, sizeof *table->slots);
        if (!table->slots) {
            PyErr_NoMemory();
            return -1;
        }
    }
    rules[probe][rule_counts[probe]++] = rule;
    if (rule.map >= map_count)
        map_count = rule.map + 1;
    if (rule.kind == KIND_ELAPSED && rule.unmatched >= map_count)
        map_count = rule.unmatched + 1;
    return 0;
}

static void forget_rules(void)
{
    quiclab_recorded = 0;
    memset(rule_counts, 0, sizeof rule_counts);
    map_count = 0;
    for (int index = 0; index < MOST_TABLES; index++) {
        free(tables[index].slots);
        tables[index].slots = NULL;
    }
}

PyObject *record(PyObject *module, PyObject *items)
{
    PyObject *list = PySequence_Fast(items, "rules must be a sequence");
    uint64_t recorded = 0;

    (void)module;
    if (!list)
        return NULL;
    forget_rules();
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(list); index++)
        if (add_rule(PySequence_Fast_GET_ITEM(list, index)) < 0) {
            Py_DECREF(list);
            forget_rules();
            return NULL;
        }
    Py_DECREF(list);
    clear();
    for (int probe = 0; probe < PROBE_COUNT; probe++)
        if (rule_counts[probe])
            recorded |= 1ull << probe;
    quiclab_recorded = recorded;
    Py_RETURN_NONE;
}

PyObject *clear_recorded(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    clear();
    Py_RETURN_NONE;
}

PyObject *recorded(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(quiclab_recorded);
}

static PyObject *to_list(const uint64_t *counts)
{
    PyObject *list = PyList_New(BUCKET_COUNT);

    for (int index = 0; list && index < BUCKET_COUNT; index++) {
        PyObject *count = PyLong_FromUnsignedLongLong(counts[index]);

        if (!count) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, index, count);
    }
    return list;
}

PyObject *read_recorded(PyObject *module, PyObject *unused)
{
    PyObject *found = PyList_New(map_count);

    (void)module, (void)unused;
    for (int index = 0; found && index < map_count; index++) {
        const struct map *map = maps + index;
        PyObject *item =
            Py_BuildValue("(KNNN)", (unsigned long long)map->count, to_list(map->own),
                          to_list(map->least), to_list(map->most));

        if (!item) {
            Py_DECREF(found);
            return NULL;
        }
        PyList_SET_ITEM(found, index, item);
    }
    return Py_BuildValue("(NNLKK)", found, to_list(widths), (long long)largest_width_ns,
                         (unsigned long long)event_count, (unsigned long long)lost_start_count);
}
