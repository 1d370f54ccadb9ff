/* Batches one after the other: header checks and CRC, first without Python objects, so that the GIL can be
 * released. */
#include "batch.h"
#include "native.h"
#include "record.h"

#include <stdio.h>
#include <stdlib.h>

#define FIELDS 12

/* The fields of WalkedBatch, in its order. */
typedef struct {
    int64_t field[FIELDS];
} Batch;

typedef struct {
    Batch *batches;
    size_t used, room;
    Py_ssize_t end;
    char why[WHY_ROOM];
    int out_of_memory;
} Walk;

/* Writes the fault of a batch to `why`, with the text of pure.py. Always returns 0. */
static int64_t fault(char *why, size_t room, const char *words, long long number, int expected) {
    snprintf(why, room, words, number, expected);
    return 0;
}

/* The least and the greatest timestamp delta of some records. */
typedef struct {
    int64_t least, most;
} Deltas;

/* True if the records of an uncompressed batch of `size` bytes match its header, and sets `deltas`. Otherwise sets
 * `why`. */
static int records_prove(const uint8_t *p, int64_t size, int64_t count, Deltas *deltas, char *why, size_t room) {
    Section section;
    Parsed parsed;
    char words[FAULT_ROOM];
    int64_t least = INT64_MAX, most = INT64_MIN;
    int more = section_open(&section, p + HEADER_BYTES, (Py_ssize_t)(size - HEADER_BYTES), count, 1);
    while (more >= 0 && (more = section_next(&section, &parsed)) > 0) {
        int64_t delta = parsed.timestamp_delta;
        least = delta < least ? delta : least;
        most = delta > most ? delta : most;
    }
    *deltas = (Deltas){least, most};
    if (more == 0) return 1;
    section_say(&section, words, sizeof words);
    snprintf(why, room, "records: %s", words);
    return 0;
}

int64_t batch_proves(const uint8_t *p, Py_ssize_t left, int check_crc, int check_records, char *why, size_t room) {
    if (left < HEADER_BYTES) return fault(why, room, "short", 0, 0);
    int64_t length = big(p + 8, 4), magic = big(p + 16, 1), size = LENGTH_FROM + length;
    int64_t base_offset = big(p, 8), last_delta = big(p + 23, 4), count = big(p + 57, 4), last_offset;
    if (length < MIN_LENGTH) return fault(why, room, "batch length %lld is below %d", length, MIN_LENGTH);
    if (magic != MAGIC) return fault(why, room, "magic %lld is not %d", magic, MAGIC);
    if (size > left) return fault(why, room, "short", 0, 0);
    if (check_crc && crc32c_extend(0, p + CRC_FROM, (size_t)(size - CRC_FROM)) != (uint32_t)big(p + 17, 4))
        return fault(why, room, "crc mismatch", 0, 0);
    if (base_offset < 0 || last_delta < 0 || __builtin_add_overflow(base_offset, last_delta, &last_offset))
        return fault(why, room, "offsets out of range", 0, 0);
    if (count < 0) return fault(why, room, "record count %lld", count, 0);
    Deltas deltas;
    if (check_records && !(big(p + 21, 2) & (CODEC_MASK | CONTROL)) &&
        !records_prove(p, size, count, &deltas, why, room))
        return 0;
    return size;
}

static Batch batch_at(const uint8_t *p, Py_ssize_t at, int64_t size) {
    return (Batch){{
        at,
        size,
        big(p, 8),
        (int64_t)((uint64_t)big(p, 8) + (uint64_t)big(p + 23, 4)),
        big(p + 12, 4),
        big(p + 21, 2),
        big(p + 35, 8),
        big(p + 27, 8),
        big(p + 43, 8),
        big(p + 51, 2),
        big(p + 53, 4),
        big(p + 57, 4),
    }};
}

static int walk_add(Walk *walk, const uint8_t *p, Py_ssize_t at, int64_t size) {
    if (walk->used == walk->room) {
        size_t room = walk->room ? walk->room * 2 : 16;
        Batch *grown = realloc(walk->batches, room * sizeof(Batch));
        if (grown == NULL) {
            walk->out_of_memory = 1;
            return -1;
        }
        walk->batches = grown;
        walk->room = room;
    }
    walk->batches[walk->used++] = batch_at(p, at, size);
    return 0;
}

static void walk_run(Walk *walk, const uint8_t *data, Py_ssize_t at, Py_ssize_t stop, int check_crc, int check_records,
                     size_t most) {
    while (at < stop && walk->used < most) {
        int64_t size = batch_proves(data + at, stop - at, check_crc, check_records, walk->why, sizeof walk->why);
        if (size == 0 || walk_add(walk, data + at, at, size) < 0) break;
        at += (Py_ssize_t)size;
    }
    walk->end = at;
}

static PyObject *walked_object(const Batch *batch) {
    PyObject *walked = named_tuple(Walked_type, FIELDS);
    if (walked == NULL) return NULL;
    for (int i = 0; i < FIELDS; i++) {
        PyObject *number = PyLong_FromLongLong(batch->field[i]);
        if (number == NULL || PyTuple_SetItem(walked, i, number) < 0) {
            Py_DECREF(walked);
            return NULL;
        }
    }
    return walked;
}

static PyObject *walk_object(const Walk *walk) {
    PyObject *list = PyList_New((Py_ssize_t)walk->used), *result, *end, *why;
    if (list == NULL) return NULL;
    for (size_t i = 0; i < walk->used; i++) {
        PyObject *walked = walked_object(&walk->batches[i]);
        if (walked == NULL || PyList_SetItem(list, (Py_ssize_t)i, walked) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    result = named_tuple(Batches_type, 3);
    end = PyLong_FromSsize_t(walk->end);
    why = PyUnicode_FromString(walk->why);
    if (result == NULL || end == NULL || why == NULL) {
        Py_XDECREF(result);
        Py_XDECREF(end);
        Py_XDECREF(why);
        Py_DECREF(list);
        return NULL;
    }
    PyTuple_SetItem(result, 0, list);
    PyTuple_SetItem(result, 1, end);
    PyTuple_SetItem(result, 2, why);
    return result;
}

/* Reads an optional number: None leaves *out unchanged. */
static int number_or_none(PyObject *object, Py_ssize_t *out) {
    if (object == NULL || object == Py_None) return 0;
    *out = PyLong_AsSsize_t(object);
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

PyObject *native_walk(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buf", "start", "end", "check_crc", "max_batches", "records", NULL};
    Py_buffer buf;
    Py_ssize_t start = 0, stop, most = PY_SSIZE_T_MAX;
    PyObject *end_object = NULL, *most_object = NULL, *result = NULL;
    int check_crc = 1, check_records = 0;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*|nO$pOp", names, &buf, &start, &end_object, &check_crc,
                                     &most_object, &check_records))
        return NULL;
    stop = buf.len;
    if (number_or_none(end_object, &stop) < 0 || number_or_none(most_object, &most) < 0) goto done;
    if (start < 0 || start > stop || stop > buf.len) {
        PyErr_Format(PyExc_ValueError, "range %zd..%zd is outside a buffer of %zd bytes", start, stop, buf.len);
        goto done;
    }
    Walk walk = {.end = start};
    size_t bound = most < 0 ? 0 : (size_t)most;
    if (stop - start < (check_records ? RELEASE_RECORD_BYTES : RELEASE_SUM_BYTES)) {
        walk_run(&walk, buf.buf, start, stop, check_crc, check_records, bound);
    } else {
        Py_BEGIN_ALLOW_THREADS
        walk_run(&walk, buf.buf, start, stop, check_crc, check_records, bound);
        Py_END_ALLOW_THREADS
    }
    result = walk.out_of_memory ? PyErr_NoMemory() : walk_object(&walk);
    free(walk.batches);
done:
    PyBuffer_Release(&buf);
    return result;
}

/* Sets max timestamp and CRC of the batch at p, if they differ. */
static void set_max_timestamp(uint8_t *p, Py_ssize_t size, int64_t max_timestamp) {
    if (big(p + 35, 8) == max_timestamp) return;
    big_put(p + 35, 8, max_timestamp);
    big_put(p + 17, 4, crc32c_extend(0, p + CRC_FROM, (size_t)(size - CRC_FROM)));
}

/* How far a timestamp may lie before and after the time of the broker. */
typedef struct {
    int64_t now, before, after;
} Bounds;

/* True if no timestamp from `oldest` to `newest` is out of bounds. A difference beyond 64 bits is. */
static int within(Bounds bounds, int64_t oldest, int64_t newest) {
    int64_t age, lead;
    if (__builtin_sub_overflow(bounds.now, oldest, &age) || __builtin_sub_overflow(newest, bounds.now, &lead)) return 0;
    return age <= bounds.before && lead <= bounds.after;
}

/* True if p[0..size) is one plain batch that needs no further validation at `base_offset`. Sets its max timestamp to
 * that of its records. */
static int batch_fits(uint8_t *p, Py_ssize_t size, int64_t base_offset, int64_t max_bytes, Bounds bounds) {
    if (size < HEADER_BYTES || size > max_bytes || big(p + 8, 4) != size - LENGTH_FROM || p[16] != MAGIC) return 0;
    int64_t attributes = big(p + 21, 2), last_delta = big(p + 23, 4), count = big(p + 57, 4), last_offset;
    char why[WHY_ROOM];
    if (attributes & (APPEND_TIME | CONTROL | DELETE_HORIZON)) return 0;
    if ((attributes & CODEC_MASK) > CODEC_LAST) return 0;
    if (count < 1 || count != last_delta + 1 || base_offset < 0) return 0;
    if (__builtin_add_overflow(base_offset, last_delta, &last_offset)) return 0;
    if (big(p + 43, 8) < 0 ? attributes & TRANSACTIONAL : big(p + 51, 2) < 0 || big(p + 53, 4) < 0) return 0;
    if (crc32c_extend(0, p + CRC_FROM, (size_t)(size - CRC_FROM)) != (uint32_t)big(p + 17, 4)) return 0;
    int64_t oldest = big(p + 27, 8), newest = big(p + 35, 8);
    if (!(attributes & CODEC_MASK)) {
        Deltas deltas;
        if (!records_prove(p, size, count, &deltas, why, sizeof why)) return 0;
        if (__builtin_add_overflow(oldest, deltas.most, &newest) || __builtin_add_overflow(oldest, deltas.least, &oldest))
            return 0;
    }
    if (newest < 0 || newest < oldest || !within(bounds, oldest, newest)) return 0;
    set_max_timestamp(p, size, newest);
    return 1;
}

PyObject *native_fit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer buf;
    PyObject *result = NULL;
    int fits;
    (void)self;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "fit takes 7 arguments, not %zd", count);
    long long base_offset = PyLong_AsLongLong(args[1]), epoch = PyLong_AsLongLong(args[2]);
    long long max_bytes = PyLong_AsLongLong(args[3]);
    Bounds bounds = {PyLong_AsLongLong(args[4]), PyLong_AsLongLong(args[5]), PyLong_AsLongLong(args[6])};
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &buf, PyBUF_WRITABLE) < 0) return NULL;
    if (buf.len < RELEASE_RECORD_BYTES) {
        fits = batch_fits(buf.buf, buf.len, base_offset, max_bytes, bounds);
    } else {
        Py_BEGIN_ALLOW_THREADS
        fits = batch_fits(buf.buf, buf.len, base_offset, max_bytes, bounds);
        Py_END_ALLOW_THREADS
    }
    if (fits) {
        big_put(buf.buf, 8, base_offset);
        big_put((uint8_t *)buf.buf + 12, 4, epoch);
        Batch batch = batch_at(buf.buf, 0, buf.len);
        result = walked_object(&batch);
    } else {
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&buf);
    return result;
}
