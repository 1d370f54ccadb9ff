/* A text in bytes, whatever the case of its letters: find_text. */
#include "native.h"

#define BLOCK 64
#define IS_LOWER(byte) ((byte) >= 'a' && (byte) <= 'z')

/* A text without capital letters. A byte fits its first one if `(byte | first_bit) == first`, and so the last one. */
typedef struct {
    const uint8_t *at;
    Py_ssize_t size;
    uint8_t first, first_bit, last, last_bit;
} Text;

static int has_text(const uint8_t *data, const Text *text) {
    for (Py_ssize_t i = 0; i < text->size; i++) {
        uint8_t byte = data[i];
        if (byte >= 'A' && byte <= 'Z') byte |= 0x20;
        if (byte != text->at[i]) return 0;
    }
    return 1;
}

/* Returns where the text begins in data[at:size], -1 if it is not there. Compilers turn the loop over a block into a few
 * instructions for all of its bytes. */
static Py_ssize_t find(const uint8_t *data, Py_ssize_t size, Py_ssize_t at, const Text *text) {
    Py_ssize_t end = size - text->size + 1, to_last = text->size - 1;
    while (at < end) {
        if (end - at >= BLOCK) {
            const uint8_t *first = data + at, *last = first + to_last;
            uint8_t found = 0;
            for (int i = 0; i < BLOCK; i++)
                found |= ((first[i] | text->first_bit) == text->first) & ((last[i] | text->last_bit) == text->last);
            if (!found) {
                at += BLOCK;
                continue;
            }
        }
        for (Py_ssize_t to = end - at < BLOCK ? end : at + BLOCK; at < to; at++)
            if ((data[at] | text->first_bit) == text->first && (data[at + to_last] | text->last_bit) == text->last &&
                has_text(data + at, text))
                return at;
    }
    return -1;
}

PyObject *native_find_text(PyObject *self, PyObject *args) {
    Py_buffer buf, wanted;
    Py_ssize_t start, found;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*n", &buf, &wanted, &start)) return NULL;
    if (wanted.len == 0 || start < 0) {
        PyErr_SetString(PyExc_ValueError, "find_text takes a text, and a start that is not negative");
        PyBuffer_Release(&buf);
        PyBuffer_Release(&wanted);
        return NULL;
    }
    Text text = {.at = wanted.buf, .size = wanted.len};
    text.first = text.at[0];
    text.last = text.at[text.size - 1];
    text.first_bit = IS_LOWER(text.first) ? 0x20 : 0;
    text.last_bit = IS_LOWER(text.last) ? 0x20 : 0;
    if (buf.len < RELEASE_RECORD_BYTES) {
        found = find(buf.buf, buf.len, start, &text);
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = find(buf.buf, buf.len, start, &text);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&buf);
    PyBuffer_Release(&wanted);
    return PyLong_FromSsize_t(found);
}
