/* Records of one section as Python objects: check_records, rows, first_at_or_after. */
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
    [TIMESTAMP_RANGE] = "has a timestamp out of range",
};

void section_say(const Section *section, char *words, size_t room) {
    if (section->fault == AFTER_LAST)
        snprintf(words, room, "bytes after the last record");
    else if (section->fault == BAD_COUNT)
        snprintf(words, room, "%lld records in %zd bytes", (long long)section->count,
                 (Py_ssize_t)(section->end - section->start));
    else
        snprintf(words, room, "record %lld %s", (long long)section->number, fault_words[section->fault]);
}

PyObject *section_raise(const Section *section) {
    char words[FAULT_ROOM];
    section_say(section, words, sizeof words);
    PyErr_SetString(Corrupt_type, words);
    return NULL;
}

static int check_all(Section *section) {
    Parsed parsed;
    int more;
    while ((more = section_next(section, &parsed)) > 0) continue;
    return more;
}

PyObject *native_check_records(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "count", NULL};
    Py_buffer payload;
    long long count;
    Section section;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*L", names, &payload, &count)) return NULL;
    int outcome = section_open(&section, payload.buf, payload.len, count, 1);
    if (outcome == 0 && payload.len < RELEASE_RECORD_BYTES) {
        outcome = check_all(&section);
    } else if (outcome == 0) {
        Py_BEGIN_ALLOW_THREADS
        outcome = check_all(&section);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    if (outcome < 0) return section_raise(&section);
    Py_RETURN_NONE;
}

/* Puts a new reference into a tuple under construction; -1 when it is NULL. */
static int put(PyObject *tuple, Py_ssize_t place, PyObject *item) {
    return item == NULL ? -1 : PyTuple_SetItem(tuple, place, item);
}

static PyObject *span_object(Span bytes) {
    if (bytes.size < 0) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)bytes.data, bytes.size);
}

/* Read a second time with the same checks: making objects may run other code, which may change a writable buffer. */
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

static PyObject *record_object(Section *section, const Parsed *parsed, int64_t offset, int64_t timestamp) {
    PyObject *record = named_tuple(Record_type, 5);
    if (record == NULL) return NULL;
    if (put(record, 0, PyLong_FromLongLong(offset)) < 0 || put(record, 1, PyLong_FromLongLong(timestamp)) < 0 ||
        put(record, 2, span_object(parsed->key)) < 0 || put(record, 3, span_object(parsed->value)) < 0 ||
        put(record, 4, headers_object(section, parsed)) < 0) {
        Py_DECREF(record);
        return NULL;
    }
    return record;
}

PyObject *native_rows(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "base_offset", "base_timestamp", "append_time", "count", NULL};
    Py_buffer payload;
    long long base_offset, base_timestamp, append_time, count;
    PyObject *rows = NULL;
    Section section;
    Parsed parsed;
    int more;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*LLLL", names, &payload, &base_offset, &base_timestamp,
                                     &append_time, &count))
        return NULL;
    if (section_open(&section, payload.buf, payload.len, count, 0) < 0) goto corrupt;
    if ((rows = PyList_New((Py_ssize_t)count)) == NULL) goto failed;
    while ((more = section_next(&section, &parsed)) > 0) {
        int64_t offset, timestamp;
        PyObject *record;
        if (section_place(&section, &parsed, base_offset, base_timestamp, append_time, &offset, &timestamp) < 0)
            goto corrupt;
        if ((record = record_object(&section, &parsed, offset, timestamp)) == NULL) goto failed;
        PyList_SetItem(rows, (Py_ssize_t)section.number - 1, record);
    }
    if (more < 0) goto corrupt;
    PyBuffer_Release(&payload);
    return rows;
corrupt:
    section_raise(&section);
failed:
    PyBuffer_Release(&payload);
    Py_XDECREF(rows);
    return NULL;
}

PyObject *native_first_at_or_after(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "base_offset", "base_timestamp", "timestamp", "count", NULL};
    Py_buffer payload;
    long long base_offset, base_timestamp, wanted, count;
    int64_t offset, timestamp;
    Section section;
    Parsed parsed;
    int more;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*LLLL", names, &payload, &base_offset, &base_timestamp, &wanted,
                                     &count))
        return NULL;
    more = section_open(&section, payload.buf, payload.len, count, 0) < 0 ? -1 : 1;
    while (more > 0 && (more = section_next(&section, &parsed)) > 0) {
        if (section_place(&section, &parsed, base_offset, base_timestamp, -1, &offset, &timestamp) < 0) more = -1;
        else if (timestamp >= wanted) break;
    }
    PyBuffer_Release(&payload);
    if (more < 0) return section_raise(&section);
    if (more == 0) Py_RETURN_NONE;
    return Py_BuildValue("LL", (long long)offset, (long long)timestamp);
}
