/* Records of one section as Python objects: check_records, split_records, time_range, rows, some_rows, first_at_or_after,
 * outside. */
#include "record.h"

#include <stdio.h>

static const char *const fault_words[] = {
    [ENDS_EARLY] = "ends early",
    [VARINT_TOO_LONG] = "has a varint that is too long",
    [BAD_LENGTH] = "has a bad length",
    [BAD_KEY] = "has a bad key length",
    [BAD_VALUE] = "has a bad value length",
    [BAD_HEADER_COUNT] = "has a bad header count",
    [BAD_HEADER_KEY] = "has a bad header key length",
    [BAD_HEADER_VALUE] = "has a bad header value length",
    [LEFT_OVER] = "has bytes left over",
    [OUT_OF_ORDER] = "is out of order",
    [OFFSET_RANGE] = "has an offset out of range",
};

void section_say(const Section *section, char *words, size_t room) {
    if (section->fault == AFTER_LAST)
        snprintf(words, room, "bytes after the last record");
    else if (section->fault == BAD_COUNT)
        snprintf(words, room, "%lld records in %zd bytes", (long long)section->count,
                 (Py_ssize_t)(section->end - section->start));
    else if (section->fault == TOO_MANY)
        snprintf(words, room, "record %lld with %lld headers exceeds the bound of %lld records and headers",
                 (long long)section->number, (long long)section->headers, (long long)section->objects);
    else
        snprintf(words, room, "record %lld %s", (long long)section->number, fault_words[section->fault]);
}

PyObject *section_raise(const Section *section) {
    char words[FAULT_ROOM];
    section_say(section, words, sizeof words);
    PyErr_SetString(section->fault == TOO_MANY ? TooLarge_type : Corrupt_type, words);
    return NULL;
}

static int check_all(Section *section) {
    Parsed parsed;
    int more;
    while ((more = section_next(section, &parsed)) > 0) continue;
    return more;
}

PyObject *native_check_records(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "count", "first", NULL};
    Py_buffer payload;
    long long count, first = 0;
    Section section;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*L|L", names, &payload, &count, &first)) return NULL;
    int outcome = section_open(&section, payload.buf, payload.len, count, 1);
    if (outcome == 0) {
        section.number = first;
        section.count += first;
    }
    if (outcome == 0 && payload.len < RELEASE_RECORD_BYTES) {
        outcome = check_all(&section);
    } else if (outcome == 0) {
        Py_BEGIN_ALLOW_THREADS
        outcome = check_all(&section);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    if (outcome < 0) return section_raise(&section);
    return Py_NewRef(Py_None);
}

/* Walks over the whole records in the bytes that are there. Returns 0 with the bytes that the next record takes, or 0
 * of them if its length is cut short; -1 with `fault` set. */
static int split(Section *section, int64_t *wanted) {
    Parsed parsed;
    *wanted = 0;
    while (section->number < section->count) {
        const uint8_t *at = section->at;
        int32_t length;
        section->fault = varint32(&at, section->end, &length);
        if (section->fault == ENDS_EARLY) break;
        if (section->fault == FINE && length < 0) section->fault = BAD_LENGTH;
        if (section->fault != FINE) return -1;
        if (length > section->end - at) {
            *wanted = (at - section->at) + (int64_t)length;
            break;
        }
        if (section_next(section, &parsed) < 0) return -1;
    }
    section->fault = FINE;
    return 0;
}

PyObject *native_split_records(PyObject *self, PyObject *args) {
    Py_buffer payload;
    long long count, first, last_delta;
    int64_t wanted = 0;
    Section section;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*LLL", &payload, &count, &first, &last_delta)) return NULL;
    section_open(&section, payload.buf, payload.len, 0, 0);
    section.number = first;
    section.count = count;
    section.last_delta = last_delta;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = split(&section, &wanted);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&payload);
    if (outcome < 0) return section_raise(&section);
    return Py_BuildValue("LnLL", (long long)(section.number - first), (Py_ssize_t)(section.at - section.start),
                         (long long)section.last_delta, (long long)wanted);
}

#define NO_TIMESTAMP (-1)

/* The timestamps of the records of a section. `oldest` leaves out records without a timestamp; it is NO_TIMESTAMP if no
 * record has one. `newest` is at least NO_TIMESTAMP. `beyond` is the number of the first record whose timestamp is beyond
 * 64 bits, or -1. */
typedef struct {
    int64_t oldest, newest, beyond;
} Times;

static Times times_of_none(void) { return (Times){INT64_MAX, NO_TIMESTAMP, -1}; }

static void times_add(Times *times, int64_t base_timestamp, const Parsed *parsed, int64_t number) {
    int64_t timestamp;
    if (__builtin_add_overflow(base_timestamp, parsed->timestamp_delta, &timestamp)) {
        if (times->beyond < 0) times->beyond = number;
        return;
    }
    if (timestamp > times->newest) times->newest = timestamp;
    if (timestamp < times->oldest && timestamp != NO_TIMESTAMP) times->oldest = timestamp;
}

static void times_end(Times *times) {
    if (times->oldest == INT64_MAX && times->newest != INT64_MAX) times->oldest = NO_TIMESTAMP;
}

static int times_read(Section *section, long long base_timestamp, Times *times) {
    Parsed parsed;
    int more;
    while ((more = section_next(section, &parsed)) > 0) times_add(times, base_timestamp, &parsed, section->number - 1);
    times_end(times);
    return more;
}

PyObject *native_time_range(PyObject *self, PyObject *args) {
    Py_buffer payload;
    long long base_timestamp, count;
    Times times = times_of_none();
    Section section;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*LL", &payload, &base_timestamp, &count)) return NULL;
    int outcome = section_open(&section, payload.buf, payload.len, count, 0);
    if (outcome == 0 && payload.len < RELEASE_RECORD_BYTES) {
        outcome = times_read(&section, base_timestamp, &times);
    } else if (outcome == 0) {
        Py_BEGIN_ALLOW_THREADS
        outcome = times_read(&section, base_timestamp, &times);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    if (outcome < 0) return section_raise(&section);
    return Py_BuildValue("LLL", (long long)times.oldest, (long long)times.newest, (long long)times.beyond);
}

/* Puts a new reference into a tuple under construction. Returns -1 if it is NULL. */
static int put(PyObject *tuple, Py_ssize_t place, PyObject *item) {
    return item == NULL ? -1 : PyTuple_SetItem(tuple, place, item);
}

static PyObject *span_object(Span bytes) {
    if (bytes.size < 0) return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)bytes.data, bytes.size);
}

/* Reads again with the same checks: object creation may run other code, which may change a writable buffer. */
static PyObject *headers_object(Section *section, const Parsed *parsed) {
    const uint8_t *at = parsed->headers;
    PyObject *headers = PyTuple_New(parsed->header_count);
    if (headers == NULL) return NULL;
    for (int32_t i = 0; i < parsed->header_count; i++) {
        Span key, value;
        PyObject *pair;
        if ((section->fault = header_next(&at, parsed->end, &key, &value)) != FINE) {
            section_raise(section);
            goto failed;
        }
        if ((pair = PyTuple_New(2)) == NULL) goto failed;
        if (put(pair, 0, PyUnicode_DecodeUTF8((const char *)key.data, key.size, "replace")) < 0 ||
            put(pair, 1, span_object(value)) < 0) {
            Py_DECREF(pair);
            goto failed;
        }
        PyTuple_SetItem(headers, i, pair);
    }
    return headers;
failed:
    Py_DECREF(headers);
    return NULL;
}

/* Keys and values of more than `most` bytes become slices of `view` instead of copies. It begins at `start`, and may be
 * NULL if there are none so long. */
typedef struct {
    PyObject *view;
    const uint8_t *start;
    Py_ssize_t most;
} Views;

static const Views no_views = {NULL, NULL, PY_SSIZE_T_MAX};

static PyObject *field_object(Span bytes, const Views *views) {
    if (bytes.size < 0 || bytes.size <= views->most) return span_object(bytes);
    Py_ssize_t at = bytes.data - views->start;
    return PySequence_GetSlice(views->view, at, at + bytes.size);
}

static PyObject *record_object(Section *section, const Parsed *parsed, int64_t offset, int64_t timestamp,
                               const Views *views) {
    PyObject *record = named_tuple(Record_type, 5);
    if (record == NULL) return NULL;
    if (put(record, 0, PyLong_FromLongLong(offset)) < 0 || put(record, 1, PyLong_FromLongLong(timestamp)) < 0 ||
        put(record, 2, field_object(parsed->key, views)) < 0 || put(record, 3, field_object(parsed->value, views)) < 0 ||
        put(record, 4, headers_object(section, parsed)) < 0) {
        Py_DECREF(record);
        return NULL;
    }
    return record;
}

/* Limits on what becomes objects: records from offset `start` on, of `size` bytes and of so many records and
 * headers together. */
typedef struct {
    long long start, size, objects;
} Bounds;

/* Appends the records within the limits to `rows`. Returns 1 if these are all, 0 if a limit was reached after at least
 * one record, -1 with `fault` set for the section, -2 with an exception set. */
static int rows_within(PyObject *rows, Section *section, long long base_offset, long long base_timestamp,
                       long long append_time, Bounds bounds, const Views *views) {
    Parsed parsed;
    int more;
    section->objects = bounds.objects;
    for (const uint8_t *from = section->at; (more = section_next(section, &parsed)) > 0; from = section->at) {
        int64_t offset, timestamp;
        if (section_place(section, &parsed, base_offset, base_timestamp, append_time, &offset, &timestamp) < 0) return -1;
        if (offset < bounds.start) continue;
        int is_first = PyList_Size(rows) == 0;
        bounds.objects -= 1 + (long long)parsed.header_count;
        bounds.size -= section->at - from;
        section->headers = parsed.header_count;
        if (bounds.objects < 0 && is_first) {
            section->fault = TOO_MANY;
            section->number--;
            return -1;
        }
        if (!is_first && (bounds.objects < 0 || bounds.size < 0)) {
            section->number--;
            return 0;
        }
        PyObject *record = record_object(section, &parsed, offset, timestamp, views);
        if (record == NULL) return -2;
        int outcome = PyList_Append(rows, record);
        Py_DECREF(record);
        if (outcome < 0) return -2;
    }
    return more < 0 ? -1 : 1;
}

PyObject *native_rows(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "base_offset", "base_timestamp", "append_time", "count", "objects", NULL};
    Py_buffer payload;
    long long base_offset, base_timestamp, append_time, count;
    Bounds bounds = {INT64_MIN, INT64_MAX, OBJECTS_MAX};
    PyObject *rows = NULL;
    Section section;
    int outcome = -1;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*LLLL|L", names, &payload, &base_offset, &base_timestamp,
                                     &append_time, &count, &bounds.objects))
        return NULL;
    if (section_open(&section, payload.buf, payload.len, count, 0) == 0) {
        rows = PyList_New(0);
        outcome = rows == NULL ? -2 : rows_within(rows, &section, base_offset, base_timestamp, append_time, bounds, &no_views);
        if (outcome == 0) section.fault = TOO_MANY;
    }
    PyBuffer_Release(&payload);
    if (outcome > 0) return rows;
    Py_XDECREF(rows);
    return outcome == -2 ? NULL : section_raise(&section);
}

PyObject *native_some_rows(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "base_offset", "base_timestamp", "append_time", "count",
                            "start",   "size",        "objects",        "copied",      NULL};
    Py_buffer payload;
    PyObject *source;
    long long base_offset, base_timestamp, append_time, count;
    Bounds bounds;
    Views views = no_views;
    PyObject *rows = NULL;
    Section section;
    int outcome = -1;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLLLLLL|n", names, &source, &base_offset, &base_timestamp,
                                     &append_time, &count, &bounds.start, &bounds.size, &bounds.objects, &views.most))
        return NULL;
    if (PyObject_GetBuffer(source, &payload, PyBUF_SIMPLE) < 0) return NULL;
    if (payload.len > views.most) {
        views.start = payload.buf;
        if ((views.view = PyMemoryView_FromObject(source)) == NULL) {
            PyBuffer_Release(&payload);
            return NULL;
        }
    }
    if (section_open(&section, payload.buf, payload.len, count, 0) == 0) {
        rows = PyList_New(0);
        outcome =
            rows == NULL ? -2 : rows_within(rows, &section, base_offset, base_timestamp, append_time, bounds, &views);
    }
    Py_XDECREF(views.view);
    PyBuffer_Release(&payload);
    if (outcome >= 0) return Py_BuildValue("NN", rows, PyBool_FromLong(outcome));
    Py_XDECREF(rows);
    return outcome == -2 ? NULL : section_raise(&section);
}

/* Returns 1 with the first record from offset `start` on that is not earlier than `wanted`, 0 if there is none, -1 with
 * `fault` set. */
static int find_at_or_after(Section *section, long long base_offset, long long base_timestamp, long long wanted,
                            long long start, int64_t *offset, int64_t *timestamp) {
    Parsed parsed;
    int more;
    while ((more = section_next(section, &parsed)) > 0) {
        if (section_place(section, &parsed, base_offset, base_timestamp, -1, offset, timestamp) < 0) return -1;
        if (*timestamp >= wanted && *offset >= start) break;
    }
    return more;
}

PyObject *native_first_at_or_after(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "base_offset", "base_timestamp", "timestamp", "count", "start", NULL};
    Py_buffer payload;
    long long base_offset, base_timestamp, wanted, count, start = INT64_MIN;
    int64_t offset, timestamp;
    Section section;
    int found;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*LLLL|L", names, &payload, &base_offset, &base_timestamp, &wanted,
                                     &count, &start))
        return NULL;
    found = section_open(&section, payload.buf, payload.len, count, 0);
    if (found == 0 && payload.len < RELEASE_RECORD_BYTES) {
        found = find_at_or_after(&section, base_offset, base_timestamp, wanted, start, &offset, &timestamp);
    } else if (found == 0) {
        Py_BEGIN_ALLOW_THREADS
        found = find_at_or_after(&section, base_offset, base_timestamp, wanted, start, &offset, &timestamp);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    if (found < 0) return section_raise(&section);
    if (found == 0) return Py_NewRef(Py_None);
    return Py_BuildValue("LL", (long long)offset, (long long)timestamp);
}

PyObject *native_outside(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "base_timestamp", "low", "high", "count", "most", NULL};
    Py_buffer payload;
    long long base_timestamp, low, high, count, most;
    int64_t offset, timestamp;
    PyObject *found = NULL;
    Section section;
    Parsed parsed;
    int more = -1;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*LLLLL", names, &payload, &base_timestamp, &low, &high, &count,
                                     &most))
        return NULL;
    if (section_open(&section, payload.buf, payload.len, count, 0) == 0) {
        if ((found = PyList_New(0)) == NULL) more = -2;
        else more = 1;
    }
    while (more > 0 && PyList_Size(found) < most && (more = section_next(&section, &parsed)) > 0) {
        int64_t unwrapped;
        if (section_place(&section, &parsed, 0, base_timestamp, -1, &offset, &timestamp) < 0) more = -1;
        else if (timestamp < low || timestamp > high ||
                 __builtin_add_overflow((int64_t)base_timestamp, parsed.timestamp_delta, &unwrapped)) {
            PyObject *one = Py_BuildValue("LL", (long long)section.number - 1, (long long)timestamp);
            if (one == NULL || PyList_Append(found, one) < 0) more = -2;
            Py_XDECREF(one);
        }
    }
    PyBuffer_Release(&payload);
    if (more >= 0) return found;
    Py_XDECREF(found);
    return more == -2 ? NULL : section_raise(&section);
}
