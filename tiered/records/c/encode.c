/* Records from Python objects to the bytes of an uncompressed section. */
#include "native.h"

#include <stdlib.h>

#define VARINT_MOST 10
/* Limit on the bytes around key and value of one record: length, attributes, two deltas, two lengths and the number of
 * headers. */
#define RECORD_MOST (7 * VARINT_MOST)

typedef struct {
    uint8_t *data;
    size_t used, room;
} Out;

typedef struct {
    const char *key, *value; /* value: NULL for null */
    Py_ssize_t key_size, value_size;
} Header;

static int out_reserve(Out *out, size_t more) {
    if (out->used + more <= out->room) return 0;
    size_t room = out->room * 2 > out->used + more ? out->room * 2 : out->used + more;
    uint8_t *grown = realloc(out->data, room);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->data = grown;
    out->room = room;
    return 0;
}

static uint64_t zigzag(int64_t value) { return (uint64_t)value << 1 ^ (0 - (uint64_t)(value < 0)); }

static size_t varint_size(int64_t value) {
    uint64_t rest = zigzag(value);
    size_t size = 1;
    while (rest >>= 7) size++;
    return size;
}

static void put_varint(Out *out, int64_t value) {
    uint64_t rest = zigzag(value);
    for (; rest > 0x7f; rest >>= 7) out->data[out->used++] = (uint8_t)(rest & 0x7f) | 0x80;
    out->data[out->used++] = (uint8_t)rest;
}

static size_t bytes_size(const void *data, Py_ssize_t size) {
    return data == NULL ? 1 : varint_size(size) + (size_t)size;
}

static void put_bytes(Out *out, const void *data, Py_ssize_t size) {
    put_varint(out, data == NULL ? -1 : size);
    if (data == NULL || size == 0) return;
    memcpy(out->data + out->used, data, (size_t)size);
    out->used += (size_t)size;
}

/* One (name, value or None) pair. Its pointers are valid as long as the pair. */
static int header_read(PyObject *pair, Header *header) {
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "a header is a tuple of name and value");
        return -1;
    }
    header->key = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(pair, 0), &header->key_size);
    if (header->key == NULL) return -1;
    PyObject *value = PyTuple_GetItem(pair, 1);
    header->value = NULL;
    header->value_size = 0;
    if (value == Py_None) return 0;
    return PyBytes_AsStringAndSize(value, (char **)&header->value, &header->value_size);
}

/* Returns the bytes of all headers with their number, or -1 on error. */
static Py_ssize_t headers_size(PyObject *headers) {
    Py_ssize_t count = PyTuple_Size(headers);
    size_t size = varint_size(count);
    for (Py_ssize_t i = 0; i < count; i++) {
        Header header;
        if (header_read(PyTuple_GetItem(headers, i), &header) < 0) return -1;
        size += bytes_size(header.key, header.key_size) + bytes_size(header.value, header.value_size);
    }
    return (Py_ssize_t)size;
}

static int put_headers(Out *out, PyObject *headers) {
    Py_ssize_t count = PyTuple_Size(headers);
    put_varint(out, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        Header header;
        if (header_read(PyTuple_GetItem(headers, i), &header) < 0) return -1;
        put_bytes(out, header.key, header.key_size);
        put_bytes(out, header.value, header.value_size);
    }
    return 0;
}

static int put_record(Out *out, int64_t delta, int64_t number, const Py_buffer *key, const Py_buffer *value,
                      PyObject *headers) {
    Py_ssize_t headers_bytes = headers_size(headers);
    if (headers_bytes < 0) return -1;
    size_t body = 1 + varint_size(delta) + varint_size(number) + bytes_size(key->buf, key->len) +
                  bytes_size(value->buf, value->len) + (size_t)headers_bytes;
    if (out->used + body + VARINT_MOST > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "record section passes 2 GiB");
        return -1;
    }
    if (out_reserve(out, body + RECORD_MOST) < 0) return -1;
    put_varint(out, (int64_t)body);
    out->data[out->used++] = 0;
    put_varint(out, delta);
    put_varint(out, number);
    put_bytes(out, key->buf, key->len);
    put_bytes(out, value->buf, value->len);
    return put_headers(out, headers);
}

/* None leaves `buf` NULL, which stands for null; an empty buffer gets an address. */
static int get_bytes(PyObject *object, Py_buffer *view) {
    if (object == Py_None) return 0;
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) return -1;
    if (view->buf == NULL) view->buf = "";
    return 0;
}

static int encode_one(Out *out, PyObject *record, int64_t base_timestamp, int64_t number) {
    Py_buffer key = {0}, value = {0};
    PyObject *headers = NULL;
    int outcome = -1;
    if (!PyTuple_Check(record) || PyTuple_Size(record) != 4) {
        PyErr_SetString(PyExc_TypeError, "a record is a tuple of timestamp, key, value and headers");
        return -1;
    }
    int64_t timestamp = PyLong_AsLongLong(PyTuple_GetItem(record, 0)), delta;
    if (timestamp == -1 && PyErr_Occurred()) return -1;
    if (__builtin_sub_overflow(timestamp, base_timestamp, &delta)) {
        PyErr_SetString(PyExc_OverflowError, "timestamp delta does not fit in 64 bits");
        return -1;
    }
    if (get_bytes(PyTuple_GetItem(record, 1), &key) == 0 && get_bytes(PyTuple_GetItem(record, 2), &value) == 0 &&
        (headers = PySequence_Tuple(PyTuple_GetItem(record, 3))) != NULL)
        outcome = put_record(out, delta, number, &key, &value, headers);
    Py_XDECREF(headers);
    if (key.obj != NULL) PyBuffer_Release(&key);
    if (value.obj != NULL) PyBuffer_Release(&value);
    return outcome;
}

PyObject *native_encode_records(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"records", "base_timestamp", NULL};
    PyObject *sequence, *records, *result = NULL;
    long long base_timestamp = 0;
    Out out = {0};
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|L", names, &sequence, &base_timestamp)) return NULL;
    /* A private tuple: code that runs when a buffer is acquired cannot remove records while they are read. */
    if ((records = PySequence_Tuple(sequence)) == NULL) return NULL;
    Py_ssize_t count = PyTuple_Size(records), i = 0;
    while (i < count && encode_one(&out, PyTuple_GetItem(records, i), base_timestamp, i) == 0) i++;
    if (i == count) result = PyBytes_FromStringAndSize((const char *)out.data, (Py_ssize_t)out.used);
    free(out.data);
    Py_DECREF(records);
    return result;
}
