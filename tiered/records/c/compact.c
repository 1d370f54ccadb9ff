/* Compaction: the offset of each key into a table, batches without the records that the table supersedes, and records
 * that have no key. */
#include "batch.h"
#include "native.h"
#include "record.h"

#include <stdio.h>
#include <stdlib.h>

#define SPECIAL (CODEC_MASK | TRANSACTIONAL | CONTROL)

/* `offset` is the offset plus 1; a slot with 0 is free. */
typedef struct {
    uint64_t hash[2], offset;
} Slot;

typedef struct {
    Slot *slots;
    size_t count;
    uint64_t seed[2];
} Table;

typedef struct {
    uint8_t *data;
    size_t used, room;
    int out_of_memory;
} Out;

#define ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))
#define SIP_ROUND                                                                                                      \
    do {                                                                                                               \
        v0 += v1, v2 += v3, v1 = ROTATE(v1, 13) ^ v0, v3 = ROTATE(v3, 16) ^ v2, v0 = ROTATE(v0, 32);                     \
        v2 += v1, v0 += v3, v1 = ROTATE(v1, 17) ^ v2, v3 = ROTATE(v3, 21) ^ v0, v2 = ROTATE(v2, 32);                     \
    } while (0)

/* SipHash-1-3 with 128 bits of output. */
static void hash_key(const uint64_t *seed, const uint8_t *p, size_t size, uint64_t *hash) {
    uint64_t v0 = seed[0] ^ 0x736f6d6570736575u, v1 = seed[1] ^ 0x646f72616e646f6du;
    uint64_t v2 = seed[0] ^ 0x6c7967656e657261u, v3 = seed[1] ^ 0x7465646279746573u;
    uint64_t word, rest = (uint64_t)size << 56;
    v1 ^= 0xee;
    for (; size >= 8; p += 8, size -= 8) {
        memcpy(&word, p, 8);
        v3 ^= word;
        SIP_ROUND;
        v0 ^= word;
    }
    for (size_t i = 0; i < size; i++) rest |= (uint64_t)p[i] << (8 * i);
    v3 ^= rest;
    SIP_ROUND;
    v0 ^= rest;
    v2 ^= 0xee;
    for (int i = 0; i < 3; i++) SIP_ROUND;
    hash[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < 3; i++) SIP_ROUND;
    hash[1] = v0 ^ v1 ^ v2 ^ v3;
}

/* Returns the slot with this hash, or a free one, or NULL if there is neither. */
static Slot *slot_find(const Table *table, const uint64_t *hash) {
    size_t at = (size_t)(hash[0] % table->count);
    for (size_t i = 0; i < table->count; i++) {
        Slot *slot = &table->slots[at];
        if (slot->offset == 0 || (slot->hash[0] == hash[0] && slot->hash[1] == hash[1])) return slot;
        if (++at == table->count) at = 0;
    }
    return NULL;
}

static int table_open(Table *table, const Py_buffer *slots, const Py_buffer *seed) {
    if (seed->len != sizeof table->seed) {
        PyErr_Format(PyExc_ValueError, "a seed has 16 bytes, not %zd", seed->len);
        return -1;
    }
    if (slots->len < (Py_ssize_t)sizeof(Slot) || (uintptr_t)slots->buf % sizeof(uint64_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "a table is aligned and has at least one slot");
        return -1;
    }
    table->slots = slots->buf;
    table->count = (size_t)slots->len / sizeof(Slot);
    memcpy(table->seed, seed->buf, sizeof table->seed);
    return 0;
}

static int range_fits(const Py_buffer *data, Py_ssize_t start, Py_ssize_t end) {
    if (0 <= start && start <= end && end <= data->len) return 1;
    PyErr_Format(PyExc_ValueError, "range %zd..%zd is outside a buffer of %zd bytes", start, end, data->len);
    return 0;
}

/* Returns the size of the batch at p, or 0 with `why` set: also before a batch that is not plain, unless `one`. */
static int64_t batch_next(const uint8_t *p, Py_ssize_t left, int one, char *why) {
    int64_t size = batch_proves(p, left, !one, 0, why, WHY_ROOM);
    if (size == 0 || one || !(big(p + 21, 2) & SPECIAL)) return size;
    snprintf(why, WHY_ROOM, "special");
    return 0;
}

/* Sets `why` from the fault of a section. Always returns -1. */
static int say(const Section *section, char *why) {
    section_say(section, why, WHY_ROOM);
    return -1;
}

/* A record whose key is looked up together with those of the next ones: the memory of their slots comes meanwhile. */
typedef struct {
    Parsed parsed;
    const uint8_t *start;
    int64_t offset;
    uint64_t hash[2]; /* of a key at an offset from `first` to `last` of the lookup */
} Wanted;

#define WANTED_MAX 32

typedef struct {
    const Table *table;
    const uint8_t *batch;
    int64_t first, last;
    Section section;
    Wanted wanted[WANTED_MAX];
} Lookup;

static int lookup_open(Lookup *lookup, const Table *table, const uint8_t *p, int64_t size, int64_t first, int64_t last) {
    lookup->table = table;
    lookup->batch = p;
    lookup->first = first;
    lookup->last = last;
    return section_open(&lookup->section, p + HEADER_BYTES, (Py_ssize_t)(size - HEADER_BYTES), big(p + 57, 4), 0);
}

static int lookup_parse(Lookup *lookup, Wanted *wanted) {
    Section *section = &lookup->section;
    wanted->start = section->at;
    int more = section_next(section, &wanted->parsed);
    if (more <= 0) return more;
    if (wanted->parsed.offset_delta > big(lookup->batch + 23, 4)) {
        section->number--;
        section->fault = OFFSET_RANGE;
        return -1;
    }
    wanted->offset = big(lookup->batch, 8) + wanted->parsed.offset_delta;
    return 1;
}

/* Reads the next records. Returns how many: 0 at the end, or before a record with a `fault` of the section. */
static int lookup_next(Lookup *lookup) {
    int count = 0;
    const Table *table = lookup->table;
    while (count < WANTED_MAX && lookup->section.fault == FINE) {
        Wanted *wanted = &lookup->wanted[count];
        const Span *key = &wanted->parsed.key;
        if (lookup_parse(lookup, wanted) <= 0) break;
        count++;
        if (key->size < 0 || wanted->offset < lookup->first || wanted->offset > lookup->last) continue;
        hash_key(table->seed, key->data, (size_t)key->size, wanted->hash);
        __builtin_prefetch(&table->slots[wanted->hash[0] % table->count], 1);
    }
    return count;
}

/* Returns the fields as an instance of a named tuple. Takes over `fields`, which is NULL after an error. */
static PyObject *tuple_as(PyObject *type, PyObject *fields) {
    if (fields == NULL) return NULL;
    Py_ssize_t size = PyTuple_Size(fields);
    PyObject *result = named_tuple(type, size);
    for (Py_ssize_t i = 0; result != NULL && i < size; i++)
        PyTuple_SetItem(result, i, Py_NewRef(PyTuple_GetItem(fields, i)));
    Py_DECREF(fields);
    return result;
}

/* -- keys into the table ------------------------------------------------------------------------------------------ */

typedef struct {
    Table table;
    long long keys, keys_max, latest_offset, from_offset, records, keyless;
    Py_ssize_t at;
    char why[WHY_ROOM];
} Put;

static int put_key(Put *put, const Wanted *wanted) {
    Slot *slot = slot_find(&put->table, wanted->hash);
    if (slot == NULL || (slot->offset == 0 && put->keys >= put->keys_max)) {
        snprintf(put->why, sizeof put->why, "full");
        return -1;
    }
    if (slot->offset == 0) {
        put->keys++;
        slot->hash[0] = wanted->hash[0];
        slot->hash[1] = wanted->hash[1];
    }
    if ((uint64_t)wanted->offset + 1 > slot->offset) slot->offset = (uint64_t)wanted->offset + 1;
    return 0;
}

/* Puts the keys of the batch at p. Returns -1 with `why` set. */
static int put_batch(Put *put, const uint8_t *p, int64_t size) {
    Lookup lookup;
    int count;
    if (lookup_open(&lookup, &put->table, p, size, put->from_offset, INT64_MAX) < 0)
        return say(&lookup.section, put->why);
    while ((count = lookup_next(&lookup)) > 0) {
        for (const Wanted *wanted = lookup.wanted; wanted < lookup.wanted + count; wanted++) {
            if (wanted->offset < put->from_offset) continue;
            if (wanted->parsed.key.size >= 0 && put_key(put, wanted) < 0) return -1;
            put->records++;
            put->keyless += wanted->parsed.key.size < 0;
            if (wanted->offset > put->latest_offset) put->latest_offset = wanted->offset;
        }
    }
    return lookup.section.fault != FINE ? say(&lookup.section, put->why) : 0;
}

static void put_run(Put *put, const uint8_t *data, Py_ssize_t end, int one) {
    while (put->at < end) {
        const uint8_t *p = data + put->at;
        int64_t size = batch_next(p, end - put->at, one, put->why);
        if (size == 0 || put_batch(put, p, size) < 0) return;
        int64_t last_offset = big(p, 8) + big(p + 23, 4);
        if (last_offset >= put->from_offset && last_offset > put->latest_offset) put->latest_offset = last_offset;
        put->at += (Py_ssize_t)size;
        if (one) return;
    }
}

PyObject *native_put_keys(PyObject *self, PyObject *args) {
    Py_buffer slots, seed, data;
    Put put = {0};
    Py_ssize_t end;
    int one;
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*LLLy*nnLp", &slots, &seed, &put.keys, &put.keys_max, &put.latest_offset, &data,
                          &put.at, &end, &put.from_offset, &one))
        return NULL;
    if (table_open(&put.table, &slots, &seed) < 0 || !range_fits(&data, put.at, end)) goto done;
    if (end - put.at < RELEASE_RECORD_BYTES) {
        put_run(&put, data.buf, end, one);
    } else {
        Py_BEGIN_ALLOW_THREADS
        put_run(&put, data.buf, end, one);
        Py_END_ALLOW_THREADS
    }
    PyObject *fields = Py_BuildValue("nLLLLs", put.at, put.keys, put.latest_offset, put.records, put.keyless, put.why);
    result = tuple_as(PutResult_type, fields);
done:
    PyBuffer_Release(&slots);
    PyBuffer_Release(&seed);
    PyBuffer_Release(&data);
    return result;
}

/* -- batches without what is superseded --------------------------------------------------------------------------- */

typedef struct {
    Table table;
    Out out;
    const uint8_t *kept_offsets;
    size_t kept_offsets_count;
    long long latest_offset, last_next_offset, now_ms, horizon_ms, batches, read, kept;
    Py_ssize_t at;
    char why[WHY_ROOM];
} Filter;

static int out_reserve(Out *out, size_t more) {
    if (out->used + more <= out->room) return 0;
    size_t room = out->room * 2 > out->used + more ? out->room * 2 : out->used + more;
    uint8_t *grown = realloc(out->data, room);
    if (grown == NULL) {
        out->out_of_memory = 1;
        return -1;
    }
    out->data = grown;
    out->room = room;
    return 0;
}

static int out_put(Out *out, const void *data, size_t size) {
    if (out_reserve(out, size) < 0) return -1;
    memcpy(out->data + out->used, data, size);
    out->used += size;
    return 0;
}

static size_t varint_put(uint8_t *p, int64_t value) {
    uint64_t rest = (uint64_t)value << 1 ^ (0 - (uint64_t)(value < 0));
    size_t size = 0;
    for (; rest > 0x7f; rest >>= 7) p[size++] = (uint8_t)(rest & 0x7f) | 0x80;
    p[size++] = (uint8_t)rest;
    return size;
}

/* Appends the record at [start, end) with another timestamp delta. */
static int out_put_moved(Out *out, const uint8_t *start, const uint8_t *end, int64_t delta) {
    const uint8_t *at = start;
    int32_t length;
    int64_t before;
    uint8_t moved[10], front[10];
    varint32(&at, end, &length);
    uint8_t attributes = *at++;
    varint64(&at, end, &before);
    size_t moved_size = varint_put(moved, delta), rest = (size_t)(end - at);
    size_t front_size = varint_put(front, (int64_t)(1 + moved_size + rest));
    if (out_reserve(out, front_size + 1 + moved_size + rest) < 0) return -1;
    out_put(out, front, front_size);
    out_put(out, &attributes, 1);
    out_put(out, moved, moved_size);
    return out_put(out, at, rest);
}

static int has_offset(const Filter *filter, int64_t offset) {
    size_t low = 0, high = filter->kept_offsets_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int64_t kept;
        memcpy(&kept, filter->kept_offsets + middle * sizeof kept, sizeof kept);
        if (kept == offset) return 1;
        if (kept < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

static int is_superseded(const Filter *filter, const Wanted *wanted, int keeps_tombstones) {
    if (wanted->offset > filter->latest_offset) return 0;
    if (wanted->parsed.key.size < 0 || (wanted->parsed.value.size < 0 && !keeps_tombstones)) return 1;
    const Slot *slot = slot_find(&filter->table, wanted->hash);
    return slot != NULL && (uint64_t)wanted->offset + 1 < slot->offset;
}

typedef struct {
    int64_t kept, newest, last_tombstone;
} Stay;

/* Appends the records that stay of the batch at p; with `moves` their timestamps are relative to the horizon. */
static int copy_records(Filter *filter, const uint8_t *p, int64_t size, int moves, Stay *stay) {
    Lookup lookup;
    int64_t base_timestamp = big(p + 27, 8), timestamp, unused;
    int has_horizon = (big(p + 21, 2) & DELETE_HORIZON) != 0;
    int keeps_tombstones = !has_horizon || filter->now_ms < base_timestamp, count;
    const uint8_t *run = NULL; /* records from `run` on stay and are not copied yet */
    *stay = (Stay){0, INT64_MIN, -1};
    if (lookup_open(&lookup, &filter->table, p, size, 0, filter->latest_offset) < 0)
        return say(&lookup.section, filter->why);
    Section placed = lookup.section; /* its number is that of the record of this turn, and not of the last one read */
    while ((count = lookup_next(&lookup)) > 0) {
        for (const Wanted *wanted = lookup.wanted; wanted < lookup.wanted + count; wanted++) {
            placed.number++;
            if (is_superseded(filter, wanted, keeps_tombstones)) {
                if (run != NULL && out_put(&filter->out, run, (size_t)(wanted->start - run)) < 0) return -1;
                run = NULL;
                continue;
            }
            if (section_place(&placed, &wanted->parsed, big(p, 8), base_timestamp, -1, &unused, &timestamp) < 0)
                return say(&placed, filter->why);
            stay->kept++;
            if (wanted->parsed.value.size < 0 && wanted->offset > stay->last_tombstone)
                stay->last_tombstone = wanted->offset;
            if (timestamp > stay->newest) stay->newest = timestamp;
            if (!moves) {
                if (run == NULL) run = wanted->start;
                continue;
            }
            int64_t moved = (int64_t)((uint64_t)timestamp - (uint64_t)filter->horizon_ms);
            if (out_put_moved(&filter->out, wanted->start, wanted->parsed.end, moved) < 0) return -1;
        }
    }
    if (lookup.section.fault != FINE) return say(&lookup.section, filter->why);
    return run == NULL ? 0 : out_put(&filter->out, run, (size_t)(lookup.section.at - run));
}

/* Writes the fields of the rebuilt batch that begins at `mark` of the output. */
static void finish_batch(Filter *filter, size_t mark, int64_t attributes, int64_t base_timestamp, int64_t max_timestamp,
                         int64_t count) {
    uint8_t *p = filter->out.data + mark;
    size_t size = filter->out.used - mark;
    big_put(p + 8, 4, (int64_t)size - LENGTH_FROM);
    big_put(p + 21, 2, attributes);
    big_put(p + 27, 8, base_timestamp);
    big_put(p + 35, 8, max_timestamp);
    big_put(p + 57, 4, count);
    big_put(p + 17, 4, crc32c_extend(0, p + CRC_FROM, size - CRC_FROM));
}

/* Appends what stays of the batch at p. `gets_horizon`: another piece of the batch has a tombstone that needs it. Returns
 * -1 with `why` set, or without memory. */
static int filter_batch(Filter *filter, const uint8_t *p, int64_t size, int gets_horizon) {
    size_t mark = filter->out.used;
    int64_t attributes = big(p + 21, 2), count = big(p + 57, 4), base_timestamp = big(p + 27, 8);
    int64_t max_timestamp = big(p + 35, 8), last_offset = big(p, 8) + big(p + 23, 4);
    int moves = 0;
    Stay stay;
    if (out_put(&filter->out, p, HEADER_BYTES) < 0 || copy_records(filter, p, size, 0, &stay) < 0) goto failed;
    int has_tombstone = stay.last_tombstone >= 0 && stay.last_tombstone <= filter->latest_offset;
    if (gets_horizon || (has_tombstone && !(attributes & DELETE_HORIZON) && filter->now_ms >= 0)) {
        moves = 1;
        filter->out.used = mark + HEADER_BYTES;
        if (copy_records(filter, p, size, 1, &stay) < 0) goto failed;
    }
    filter->read += count;
    filter->kept += stay.kept;
    if (stay.kept == 0) {
        filter->out.used = mark;
        if (last_offset + 1 != filter->last_next_offset && !has_offset(filter, last_offset)) return 0;
        filter->out.used = mark + HEADER_BYTES;
        finish_batch(filter, mark, attributes & (APPEND_TIME | TRANSACTIONAL | CONTROL), -1, max_timestamp, 0);
    } else if (stay.kept == count && !moves) {
        filter->out.used = mark;
        if (out_put(&filter->out, p, (size_t)size) < 0) goto failed;
    } else {
        finish_batch(filter, mark, moves ? attributes | DELETE_HORIZON : attributes,
                     moves ? filter->horizon_ms : base_timestamp, attributes & APPEND_TIME ? max_timestamp : stay.newest,
                     stay.kept);
    }
    filter->batches++;
    return 0;
failed:
    filter->out.used = mark;
    return -1;
}

/* A value of `one`, as in pure_compact.py. */
#define PIECE_WITH_HORIZON 2

static void filter_run(Filter *filter, const uint8_t *data, Py_ssize_t end, int one) {
    while (filter->at < end) {
        const uint8_t *p = data + filter->at;
        int64_t size = batch_next(p, end - filter->at, one, filter->why);
        if (size == 0 || filter_batch(filter, p, size, one == PIECE_WITH_HORIZON) < 0) return;
        filter->at += (Py_ssize_t)size;
        if (one) return;
    }
}

PyObject *native_filter_batches(PyObject *self, PyObject *args) {
    Py_buffer slots, seed, data, kept;
    Filter filter = {0};
    Py_ssize_t end;
    int one;
    PyObject *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*Ly*nny*LLLi", &slots, &seed, &filter.latest_offset, &data, &filter.at, &end, &kept,
                          &filter.last_next_offset, &filter.now_ms, &filter.horizon_ms, &one))
        return NULL;
    if (table_open(&filter.table, &slots, &seed) < 0 || !range_fits(&data, filter.at, end)) goto done;
    filter.kept_offsets = kept.buf;
    filter.kept_offsets_count = (size_t)kept.len / sizeof(int64_t);
    if (end - filter.at < RELEASE_RECORD_BYTES) {
        filter_run(&filter, data.buf, end, one);
    } else {
        Py_BEGIN_ALLOW_THREADS
        filter_run(&filter, data.buf, end, one);
        Py_END_ALLOW_THREADS
    }
    if (filter.out.out_of_memory) {
        PyErr_NoMemory();
    } else {
        PyObject *cleaned = PyBytes_FromStringAndSize((const char *)filter.out.data, (Py_ssize_t)filter.out.used);
        PyObject *fields = cleaned == NULL ? NULL
                                           : Py_BuildValue("NnLLLs", cleaned, filter.at, filter.batches, filter.read,
                                                           filter.kept, filter.why);
        result = tuple_as(FilterResult_type, fields);
    }
    free(filter.out.data);
done:
    PyBuffer_Release(&slots);
    PyBuffer_Release(&seed);
    PyBuffer_Release(&data);
    PyBuffer_Release(&kept);
    return result;
}

/* -- records without a key ---------------------------------------------------------------------------------------- */

PyObject *native_find_keyless(PyObject *self, PyObject *args) {
    Py_buffer payload;
    long long count;
    Py_ssize_t most;
    Section section;
    Parsed parsed;
    PyObject *found = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*Ln", &payload, &count, &most)) return NULL;
    int more = section_open(&section, payload.buf, payload.len, count, 0);
    if (more == 0) found = PyList_New(0);
    while (found != NULL && PyList_Size(found) < most && (more = section_next(&section, &parsed)) > 0) {
        if (parsed.key.size >= 0) continue;
        PyObject *number = PyLong_FromLongLong(section.number - 1);
        if (number == NULL || PyList_Append(found, number) < 0) Py_CLEAR(found);
        Py_XDECREF(number);
    }
    if (more < 0) {
        Py_CLEAR(found);
        section_raise(&section);
    }
    PyBuffer_Release(&payload);
    return found;
}
