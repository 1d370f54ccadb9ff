/* Helpers of the HTTP API: the hash that spreads keys, and the spans of JSON values. */
#include "native.h"

#define DEPTH_MAX 64

static uint32_t little(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

PyObject *native_murmur2(PyObject *self, PyObject *data) {
    const uint32_t m = 0x5bd1e995;
    Py_buffer key;
    (void)self;
    if (PyObject_GetBuffer(data, &key, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *p = key.buf, *end = p + key.len;
    uint32_t hash = 0x9747b28c ^ (uint32_t)key.len;
    for (; end - p >= 4; p += 4) {
        uint32_t k = little(p) * m;
        hash = hash * m ^ (k ^ k >> 24) * m;
    }
    if (p < end) {
        for (int i = 0; p + i < end; i++) hash ^= (uint32_t)p[i] << (8 * i);
        hash *= m;
    }
    hash = (hash ^ hash >> 13) * m;
    hash ^= hash >> 15;
    PyBuffer_Release(&key);
    return PyLong_FromLong((int32_t)hash);
}

typedef enum { WHOLE, INCOMPLETE, UNEXPECTED, TOO_DEEP } Outcome;

/* Moves *at after the closing quote of the string whose opening quote is before *at. */
static Outcome json_string(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at) {
    Py_ssize_t i = *at;
    while (i < size && data[i] != '"') i += data[i] == '\\' ? 2 : 1;
    *at = i + 1;
    return i < size ? WHOLE : INCOMPLETE;
}

/* Moves *at after the bracket that closes the one at *at. On a fault *at is the faulty byte. */
static Outcome json_nested(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at) {
    uint64_t braces = 0; /* one bit for each open bracket, the innermost lowest: is it a brace? */
    int depth = 0;
    for (Py_ssize_t i = *at; i < size;) {
        uint8_t byte = data[i];
        *at = i++;
        if (byte == '"') {
            if (json_string(data, size, &i) != WHOLE) return INCOMPLETE;
        } else if (byte == '{' || byte == '[') {
            if (depth++ == DEPTH_MAX) return TOO_DEEP;
            braces = braces << 1 | (byte == '{');
        } else if (byte == '}' || byte == ']') {
            if ((braces & 1) != (byte == '}')) return UNEXPECTED;
            braces >>= 1;
            if (--depth == 0) {
                *at = i;
                return WHOLE;
            }
        }
    }
    return INCOMPLETE;
}

static int in_scalar(uint8_t byte) {
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           byte == '+' || byte == '-' || byte == '.';
}

static Outcome json_value(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at) {
    uint8_t first = data[*at];
    if (first == '{' || first == '[') return json_nested(data, size, at);
    if (first == '"') {
        ++*at;
        return json_string(data, size, at);
    }
    if (first != '-' && !(first >= '0' && first <= '9') && first != 't' && first != 'f' && first != 'n')
        return UNEXPECTED;
    while (*at < size && in_scalar(data[*at])) ++*at;
    return *at < size ? WHOLE : INCOMPLETE;
}

static Py_ssize_t skip_space(const uint8_t *data, Py_ssize_t size, Py_ssize_t at) {
    while (at < size && (data[at] == ' ' || data[at] == '\t' || data[at] == '\n' || data[at] == '\r')) at++;
    return at;
}

/* Appends (start, end). Returns -1 on error. */
static int span_add(PyObject *spans, Py_ssize_t start, Py_ssize_t end) {
    PyObject *span = Py_BuildValue("nn", start, end);
    int outcome = span == NULL ? -1 : PyList_Append(spans, span);
    Py_XDECREF(span);
    return outcome;
}

PyObject *native_json_spans(PyObject *self, PyObject *object) {
    Py_buffer buf;
    PyObject *spans;
    Outcome outcome = WHOLE;
    (void)self;
    if (PyObject_GetBuffer(object, &buf, PyBUF_SIMPLE) < 0) return NULL;
    if ((spans = PyList_New(0)) == NULL) goto failed;
    const uint8_t *data = buf.buf;
    Py_ssize_t start = skip_space(data, buf.len, 0), at = start;
    while (start < buf.len && (outcome = json_value(data, buf.len, &at)) == WHOLE) {
        if (span_add(spans, start, at) < 0) goto failed;
        start = at = skip_space(data, buf.len, at);
    }
    if ((outcome == UNEXPECTED || outcome == TOO_DEEP) && PyList_Size(spans) == 0) {
        if (outcome == TOO_DEEP) PyErr_Format(PyExc_ValueError, "nested deeper than %d at %zd", DEPTH_MAX, at);
        else PyErr_Format(PyExc_ValueError, "unexpected byte 0x%02x at %zd", data[at], at);
        goto failed;
    }
    PyBuffer_Release(&buf);
    return Py_BuildValue("Nn", spans, start);
failed:
    PyBuffer_Release(&buf);
    Py_XDECREF(spans);
    return NULL;
}
