/* Keyed hashes of rows in Arrow buffers: SipHash-2-4 with 128 bits over an encoding that can be read back in one way
 * only. pure_hash.py describes the encoding.
 *
 * The buffers come from files that anybody may have written: every offset is compared with the buffer's size. */
#include "native.h"

#include <stdlib.h>

#define SECRET_BYTES 16
#define HASH_BYTES 16
#define NO_SIZE 0x80000000u
#define NO_HEADER 0xffffffffu

typedef struct {
    uint64_t v0, v1, v2, v3, tail;
    uint64_t size;
} Sip;

typedef struct {
    Py_buffer view; /* obj NULL: there is no buffer */
} Buffer;

/* The rows of a column from `start` on. `offsets` is absent in a column of fixed width. */
typedef struct {
    long long start;
    Buffer valid, offsets, data;
} Column;

enum { PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE, HEADERS, ITEMS, NAMES, CONTENTS, COLUMN_COUNT };
static const int widths[] = {4, 8, 8, 1, 0, 0, 0, 0, 0, 0};

static inline uint64_t rotate(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static inline void sip_round(Sip *sip) {
    sip->v0 += sip->v1;
    sip->v2 += sip->v3;
    sip->v1 = rotate(sip->v1, 13) ^ sip->v0;
    sip->v3 = rotate(sip->v3, 16) ^ sip->v2;
    sip->v0 = rotate(sip->v0, 32);
    sip->v2 += sip->v1;
    sip->v0 += sip->v3;
    sip->v1 = rotate(sip->v1, 17) ^ sip->v2;
    sip->v3 = rotate(sip->v3, 21) ^ sip->v0;
    sip->v2 = rotate(sip->v2, 32);
}

static inline void sip_word(Sip *sip, uint64_t word) {
    sip->v3 ^= word;
    sip_round(sip);
    sip_round(sip);
    sip->v0 ^= word;
}

static inline uint64_t load_word(const uint8_t *from) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint64_t)from[i] << (8 * i); /* one load on little-endian machines */
    return word;
}

static void sip_open(Sip *sip, const uint8_t *secret) {
    uint64_t low = load_word(secret), high = load_word(secret + 8);
    *sip = (Sip){
        .v0 = 0x736f6d6570736575u ^ low,
        .v1 = 0x646f72616e646f6du ^ high ^ 0xee,
        .v2 = 0x6c7967656e657261u ^ low,
        .v3 = 0x7465646279746573u ^ high,
    };
}

static void sip_take(Sip *sip, const uint8_t *from, uint64_t size) {
    int used = (int)(sip->size & 7);
    sip->size += size;
    if (used == 0) {
        for (; size >= 8; from += 8, size -= 8) sip_word(sip, load_word(from));
    } else {
        for (; size >= 8; from += 8, size -= 8) {
            uint64_t word = load_word(from);
            sip_word(sip, sip->tail | word << (8 * used));
            sip->tail = word >> (64 - 8 * used);
        }
    }
    for (; size > 0; size--) {
        sip->tail |= (uint64_t)*from++ << (8 * used);
        if (++used == 8) {
            sip_word(sip, sip->tail);
            sip->tail = 0;
            used = 0;
        }
    }
}

static void sip_take_word(Sip *sip, uint64_t word) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(word >> (8 * i));
    sip_take(sip, bytes, 8);
}

static void store_word(uint8_t *to, uint64_t word) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(word >> (8 * i));
}

static void sip_close(Sip *sip, uint8_t *out) {
    sip_word(sip, sip->tail | sip->size << 56);
    for (int half = 0; half < 2; half++) {
        if (half == 0) sip->v2 ^= 0xee;
        else sip->v1 ^= 0xdd;
        for (int i = 0; i < 4; i++) sip_round(sip);
        store_word(out + 8 * half, sip->v0 ^ sip->v1 ^ sip->v2 ^ sip->v3);
    }
}

/* Returns 1 if row `at` of the column is NULL, 0 if not, -1 if the validity ends before it. */
static int is_null(const Column *column, long long at) {
    if (column->valid.view.obj == NULL) return 0;
    at += column->start;
    if (at >> 3 >= column->valid.view.len) return -1;
    return !(((const uint8_t *)column->valid.view.buf)[at >> 3] >> (at & 7) & 1);
}

/* Puts the number in row `at`, 0 for NULL, and sets `bit` in *nulls then. Returns -1 if the column ends before it. */
static int number_at(const Column *column, int width, long long at, uint64_t bit, uint64_t *nulls, uint64_t *out) {
    int null = is_null(column, at);
    *out = 0;
    if (null != 0) {
        *nulls |= bit;
        return null < 0 ? -1 : 0;
    }
    at += column->start;
    if (at >= column->data.view.len / width) return -1;
    const uint8_t *from = (const uint8_t *)column->data.view.buf + at * width;
    if (width == 8) {
        memcpy(out, from, 8);
    } else if (width == 4) {
        uint32_t number;
        memcpy(&number, from, 4);
        *out = number;
    } else {
        *out = *from;
    }
    return 0;
}

/* Puts the bounds of the items or bytes of row `at`. Returns 1 for NULL, 0 if there are bounds below `most`, -1 if
 * not. */
static int bounds_at(const Column *column, long long at, long long most, int32_t *low, int32_t *high) {
    int null = is_null(column, at);
    if (null != 0) return null;
    at += column->start;
    if (at + 1 >= column->offsets.view.len / 4) return -1;
    memcpy(low, (const uint8_t *)column->offsets.view.buf + at * 4, 4);
    memcpy(high, (const uint8_t *)column->offsets.view.buf + at * 4 + 4, 4);
    return *low < 0 || *high < *low || *high > most ? -1 : 0;
}

/* Puts the bytes in row `at`. Returns their size as it is encoded, or -1. */
static int64_t bytes_at(const Column *column, long long at, const uint8_t **from) {
    int32_t low, high;
    int null = bounds_at(column, at, column->data.view.len, &low, &high);
    if (null != 0) return null < 0 ? -1 : (int64_t)NO_SIZE;
    if (high > low) *from = (const uint8_t *)column->data.view.buf + low;
    return high - low;
}

static uint64_t plain_size(int64_t size) { return size == (int64_t)NO_SIZE ? 0 : (uint64_t)size; }

static int hash_header(const Column *columns, long long at, Sip *sip) {
    const uint8_t *name = NULL, *content = NULL;
    int null = is_null(&columns[ITEMS], at);
    if (null < 0) return -1;
    if (null) {
        sip_take_word(sip, (uint64_t)NO_HEADER << 32 | NO_HEADER);
        return 0;
    }
    int64_t name_size = bytes_at(&columns[NAMES], at, &name), content_size = bytes_at(&columns[CONTENTS], at, &content);
    if (name_size < 0 || content_size < 0) return -1;
    sip_take_word(sip, (uint64_t)name_size | (uint64_t)content_size << 32);
    sip_take(sip, name, plain_size(name_size));
    sip_take(sip, content, plain_size(content_size));
    return 0;
}

static int hash_row(const Column *columns, const uint8_t *secret, long long at, uint8_t *out) {
    uint64_t nulls = 0, partition, offset, timestamp, type;
    const uint8_t *key = NULL, *value = NULL;
    int32_t first = 0, last = 0;
    Sip sip;
    if (number_at(&columns[PARTITION], widths[PARTITION], at, 1, &nulls, &partition) < 0 ||
        number_at(&columns[OFFSET], widths[OFFSET], at, 2, &nulls, &offset) < 0 ||
        number_at(&columns[TIMESTAMP], widths[TIMESTAMP], at, 4, &nulls, &timestamp) < 0 ||
        number_at(&columns[TIMESTAMP_TYPE], widths[TIMESTAMP_TYPE], at, 8, &nulls, &type) < 0)
        return -1;
    int64_t key_size = bytes_at(&columns[KEY], at, &key), value_size = bytes_at(&columns[VALUE], at, &value);
    int no_headers = bounds_at(&columns[HEADERS], at, INT32_MAX, &first, &last);
    if (key_size < 0 || value_size < 0 || no_headers < 0) return -1;
    sip_open(&sip, secret);
    sip_word(&sip, offset);
    sip_word(&sip, timestamp);
    sip_word(&sip, partition | (uint64_t)key_size << 32);
    sip_word(&sip, (uint64_t)value_size | (uint64_t)(no_headers ? NO_SIZE : (uint32_t)(last - first)) << 32);
    sip_word(&sip, nulls | type << 8);
    sip.size = 40;
    sip_take(&sip, key, plain_size(key_size));
    sip_take(&sip, value, plain_size(value_size));
    for (int32_t i = first; i < last; i++)
        if (hash_header(columns, i, &sip) < 0) return -1;
    sip_close(&sip, out);
    return 0;
}

static int hash_all(const Column *columns, const uint8_t *secret, long long rows, uint8_t *out) {
    for (long long i = 0; i < rows; i++)
        if (hash_row(columns, secret, i, out + i * HASH_BYTES) < 0) return -1;
    return 0;
}

static int read_buffer(PyObject *object, Buffer *buffer) {
    if (object == Py_None) return 0;
    return PyObject_GetBuffer(object, &buffer->view, PyBUF_SIMPLE);
}

/* Reads `(start, validity, offsets, data)`; each of the three is None or a buffer. */
static int read_column(PyObject *object, Column *column) {
    PyObject *valid, *offsets, *data;
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a column is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(object, "LOOO", &column->start, &valid, &offsets, &data)) return -1;
    if (column->start < 0 || column->start > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a column starts outside of its buffers");
        return -1;
    }
    if (read_buffer(valid, &column->valid) < 0 || read_buffer(offsets, &column->offsets) < 0) return -1;
    return read_buffer(data, &column->data);
}

static void column_free(Column *column) {
    Buffer *buffers[] = {&column->valid, &column->offsets, &column->data};
    for (int i = 0; i < 3; i++)
        if (buffers[i]->view.obj != NULL) PyBuffer_Release(&buffers[i]->view);
}

PyObject *native_hash_rows(PyObject *self, PyObject *args) {
    Column columns[COLUMN_COUNT] = {0};
    Py_buffer secret = {0};
    long long rows, bytes = 0;
    PyObject *sequence, *hashes = NULL;
    int outcome = 0, count = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*LO!", &secret, &rows, &PyTuple_Type, &sequence)) return NULL;
    if (secret.len != SECRET_BYTES || rows < 0 || rows > INT32_MAX || PyTuple_Size(sequence) != COLUMN_COUNT) {
        PyErr_SetString(PyExc_ValueError, "hash_rows takes a secret of 16 bytes, a count of rows and 10 columns");
        outcome = -1;
    }
    for (; outcome == 0 && count < COLUMN_COUNT; count++) {
        outcome = read_column(PyTuple_GetItem(sequence, count), &columns[count]);
        bytes += columns[count].data.view.len;
    }
    if (outcome == 0 && (hashes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)rows * HASH_BYTES)) == NULL) outcome = -1;
    if (outcome == 0) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(hashes);
        if (bytes < RELEASE_RECORD_BYTES) {
            outcome = hash_all(columns, secret.buf, rows, out);
        } else {
            Py_BEGIN_ALLOW_THREADS
            outcome = hash_all(columns, secret.buf, rows, out);
            Py_END_ALLOW_THREADS
        }
        if (outcome < 0) PyErr_SetString(PyExc_ValueError, "a row lies outside of its buffers");
    }
    for (int i = 0; i < COLUMN_COUNT; i++) column_free(&columns[i]);
    PyBuffer_Release(&secret);
    if (outcome == 0) return hashes;
    Py_XDECREF(hashes);
    return NULL;
}
