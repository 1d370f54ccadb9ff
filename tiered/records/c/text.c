/* Helpers of the HTTP API: the hash that spreads keys, the spans and the number of JSON values, and names that repeat
 * in them. */
#include "native.h"
#include <stdlib.h>

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

/* The outcome of the value at *at. Others run while a long one is scanned. */
static Outcome json_value_shared(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at) {
    Outcome outcome;
    if (size - *at < RELEASE_RECORD_BYTES) return json_value(data, size, at);
    Py_BEGIN_ALLOW_THREADS
    outcome = json_value(data, size, at);
    Py_END_ALLOW_THREADS
    return outcome;
}

PyObject *native_json_spans(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer buf;
    PyObject *spans;
    Outcome outcome = WHOLE;
    Py_ssize_t left = PY_SSIZE_T_MAX;
    (void)self;
    if (count < 1 || count > 2) {
        PyErr_SetString(PyExc_TypeError, "json_spans takes a buffer and the most spans");
        return NULL;
    }
    if (count == 2 && (left = PyLong_AsSsize_t(args[1])) == -1 && PyErr_Occurred()) return NULL;
    if (PyObject_GetBuffer(args[0], &buf, PyBUF_SIMPLE) < 0) return NULL;
    if ((spans = PyList_New(0)) == NULL) goto failed;
    const uint8_t *data = buf.buf;
    Py_ssize_t start = skip_space(data, buf.len, 0), at = start;
    while (left > 0 && start < buf.len && (outcome = json_value_shared(data, buf.len, &at)) == WHOLE) {
        if (span_add(spans, start, at) < 0) goto failed;
        start = at = skip_space(data, buf.len, at);
        left--;
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

/* True for a byte outside of strings that comes before another value or name. */
static int adds_element(uint8_t byte) { return byte == '[' || byte == '{' || byte == ',' || byte == ':'; }

static Py_ssize_t count_elements(const uint8_t *data, Py_ssize_t size) {
    Py_ssize_t elements = 1;
    for (Py_ssize_t i = 0; i < size;) {
        uint8_t byte = data[i++];
        if (byte == '"') {
            if (json_string(data, size, &i) != WHOLE) break;
        } else {
            elements += adds_element(byte);
        }
    }
    return elements;
}

PyObject *native_json_elements(PyObject *self, PyObject *object) {
    Py_buffer buf;
    Py_ssize_t elements;
    (void)self;
    if (PyObject_GetBuffer(object, &buf, PyBUF_SIMPLE) < 0) return NULL;
    if (buf.len < RELEASE_RECORD_BYTES) {
        elements = count_elements(buf.buf, buf.len);
    } else {
        Py_BEGIN_ALLOW_THREADS
        elements = count_elements(buf.buf, buf.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&buf);
    return PyLong_FromSsize_t(elements);
}

/* Consecutive entries of a JSON array: where they stand, how many they are, and how many elements they have. */
typedef struct {
    Py_ssize_t start, end, entries, elements;
} Piece;

typedef struct {
    Piece *at;
    Py_ssize_t count, room;
    Py_ssize_t elements_max, bytes_max; /* of a piece with more than one entry */
} Pieces;

/* Adds an entry to the last piece, or to a new one. Returns -1 without memory. */
static int pieces_add(Pieces *pieces, Py_ssize_t start, Py_ssize_t end, Py_ssize_t elements) {
    Piece *last = pieces->count ? pieces->at + pieces->count - 1 : NULL;
    if (last && last->elements + elements <= pieces->elements_max && end - last->start <= pieces->bytes_max) {
        last->end = end;
        last->entries++;
        last->elements += elements;
        return 0;
    }
    if (pieces->count == pieces->room) {
        Py_ssize_t room = pieces->room ? 2 * pieces->room : 64;
        Piece *more = realloc(pieces->at, (size_t)room * sizeof(Piece));
        if (more == NULL) return -1;
        pieces->at = more;
        pieces->room = room;
    }
    pieces->at[pieces->count++] = (Piece){start, end, 1, elements};
    return 0;
}

/* Bytes of a name between its quotes. */
typedef struct {
    const uint8_t *data;
    Py_ssize_t size;
} Name;

/* Moves *at after the `[` of the array that is the value of `name` in the object that the data is. */
static Outcome find_array(const uint8_t *data, Py_ssize_t size, Name name, Py_ssize_t *at) {
    Py_ssize_t depth = 0;
    Py_ssize_t i = skip_space(data, size, 0);
    if (i == size || data[i] != '{') return UNEXPECTED;
    while (i < size) {
        uint8_t byte = data[i++];
        if (byte == '"') {
            Py_ssize_t start = i;
            if (json_string(data, size, &i) != WHOLE) return INCOMPLETE;
            Py_ssize_t found = i - 1 - start;
            if (depth != 1 || found != name.size || memcmp(data + start, name.data, (size_t)found) != 0) continue;
            Py_ssize_t colon = skip_space(data, size, i);
            if (colon == size || data[colon] != ':') continue;
            i = skip_space(data, size, colon + 1);
            if (i == size || data[i] != '[') return UNEXPECTED;
            *at = i + 1;
            return WHOLE;
        }
        if (byte == '{' || byte == '[') depth++;
        else if ((byte == '}' || byte == ']') && --depth == 0) return UNEXPECTED;
    }
    return INCOMPLETE;
}

/* Cuts the array whose `[` is before *at, and moves *at to the bracket that closes it. Returns -1 without memory. */
static int cut_array(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, Pieces *pieces, Outcome *outcome) {
    Py_ssize_t depth = 0, start = *at, elements = 1;
    *outcome = INCOMPLETE;
    for (Py_ssize_t i = start; i < size;) {
        uint8_t byte = data[i++];
        if (byte == '"') {
            if (json_string(data, size, &i) != WHOLE) return 0;
            continue;
        }
        int closes = byte == '}' || byte == ']';
        if (depth == 0 && (closes || byte == ',')) {
            int is_empty = closes && pieces->count == 0 && skip_space(data, i - 1, start) == i - 1;
            if (!is_empty && pieces_add(pieces, start, i - 1, elements) < 0) return -1;
            if (closes) {
                *at = i - 1;
                *outcome = WHOLE;
                return 0;
            }
            start = i;
            elements = 1;
            continue;
        }
        elements += adds_element(byte);
        depth += (byte == '{' || byte == '[') - closes;
    }
    return 0;
}

/* The pieces as a list of tuples; NULL on error. */
static PyObject *pieces_list(const Pieces *pieces) {
    PyObject *list = PyList_New(pieces->count);
    for (Py_ssize_t i = 0; list != NULL && i < pieces->count; i++) {
        const Piece *each = pieces->at + i;
        PyObject *piece = Py_BuildValue("nnnn", each->start, each->end, each->entries, each->elements);
        if (piece == NULL) Py_CLEAR(list);
        else PyList_SetItem(list, i, piece);
    }
    return list;
}

PyObject *native_json_entries(PyObject *self, PyObject *args) {
    Py_buffer buf, name;
    Py_ssize_t start = 0, end;
    Pieces pieces = {NULL, 0, 0, 0, 0};
    Outcome outcome;
    int failed = 0;
    PyObject *found = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*nn", &buf, &name, &pieces.elements_max, &pieces.bytes_max)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    outcome = find_array(buf.buf, buf.len, (Name){name.buf, name.len}, &start);
    end = start;
    if (outcome == WHOLE) failed = cut_array(buf.buf, buf.len, &end, &pieces, &outcome);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buf);
    PyBuffer_Release(&name);
    if (failed) {
        PyErr_NoMemory();
    } else if (outcome != WHOLE) {
        found = Py_NewRef(Py_None);
    } else {
        PyObject *list = pieces_list(&pieces);
        if (list != NULL) found = Py_BuildValue("nnN", start, end, list);
    }
    free(pieces.at);
    return found;
}

#define NAMES_MAX 64
#define FREE_MAX 4

static int hex_digit(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    byte |= 'a' - 'A';
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The number of the four digits after `\u` at p; -1 without them. */
static int32_t unicode_escape(const uint8_t *p, const uint8_t *end) {
    int32_t code = 0;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* The UTF-8 of a name without its escapes, byte by byte. `more` are `count` more bytes of an escape, lowest last. */
typedef struct {
    const uint8_t *at, *end;
    uint32_t more;
    int count;
} Decoder;

/* The next byte; -1 at the end, -2 for an escape that is none. */
static int decode_next(Decoder *name) {
    if (name->count) return (int)(name->more >> 8 * --name->count & 0xff);
    if (name->at == name->end) return -1;
    if (*name->at != '\\') return *name->at++;
    if (name->end - name->at < 2) return -2;
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    const char *letter = name->at[1] ? strchr(letters, name->at[1]) : NULL;
    if (letter != NULL) {
        name->at += 2;
        return (uint8_t)bytes[letter - letters];
    }
    int32_t code = unicode_escape(name->at, name->end);
    if (code < 0) return -2;
    name->at += 6;
    int32_t low = code >> 10 == 0xd800 >> 10 ? unicode_escape(name->at, name->end) : -1;
    if (low >= 0 && low >> 10 == 0xdc00 >> 10) {
        name->at += 6;
        code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
    }
    uint32_t c = (uint32_t)code;
    if (c < 0x80) return code;
    name->count = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    name->more = (c >> 12 & 0x3f) << 16 | (c >> 6 & 0x3f) << 8 | (c & 0x3f) | 0x808080;
    return (int)(c < 0x800 ? 0xc0 | c >> 6 : c < 0x10000 ? 0xe0 | c >> 12 : 0xf0 | c >> 18);
}

static int has_escape(Name name) { return memchr(name.data, '\\', (size_t)name.size) != NULL; }

/* True for a name of printable ASCII with valid escapes. Plain Python decodes the others, or raises an error. */
static int is_decodable(Name name) {
    Decoder decoder = {name.data, name.data + name.size, 0, 0};
    int byte;
    for (Py_ssize_t i = 0; i < name.size; i++)
        if (name.data[i] < 0x20 || name.data[i] >= 0x7f) return 0;
    while ((byte = decode_next(&decoder)) >= 0) continue;
    return byte == -1;
}

static int same_name(Name a, Name b) {
    if (!has_escape(a) && !has_escape(b)) return a.size == b.size && memcmp(a.data, b.data, (size_t)a.size) == 0;
    Decoder left = {a.data, a.data + a.size, 0, 0}, right = {b.data, b.data + b.size, 0, 0};
    int byte;
    do {
        if ((byte = decode_next(&left)) != decode_next(&right)) return 0;
    } while (byte >= 0);
    return 1;
}

static int is_among(const Name *names, Py_ssize_t count, Name name) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (same_name(names[i], name)) return 1;
    return 0;
}

/* True if no object has a name twice, apart from those in the values of free names. False if that is not sure: a name
 * has an escape beside bytes that are not printable ASCII, or there are too many names or levels. */
static int names_differ(const uint8_t *data, Py_ssize_t size, const Name *free, Py_ssize_t free_count) {
    Name names[NAMES_MAX];       /* of all open objects, the outermost first */
    Py_ssize_t first[DEPTH_MAX]; /* for each open bracket: how many names came before it */
    Py_ssize_t count = 0, skipped = 0;
    int depth = 0, is_free = 0; /* is_free: the last token was a free name */
    for (Py_ssize_t i = 0; i < size;) {
        uint8_t byte = data[i++];
        if (byte == '"') {
            Name name = {data + i, 0};
            if (json_string(data, size, &i) != WHOLE) return 0;
            name.size = data + i - 1 - name.data;
            is_free = 0;
            Py_ssize_t colon = skip_space(data, size, i);
            if (colon == size || data[colon] != ':') continue;
            i = colon + 1;
            if (skipped || depth == 0) continue;
            if (count == NAMES_MAX || (has_escape(name) && !is_decodable(name))) return 0;
            if (is_among(names + first[depth - 1], count - first[depth - 1], name)) return 0;
            names[count++] = name;
            is_free = is_among(free, free_count, name);
        } else if (byte == '{' || byte == '[') {
            if (skipped || is_free) {
                skipped++;
            } else {
                if (depth == DEPTH_MAX) return 0;
                first[depth++] = count;
            }
            is_free = 0;
        } else if (byte == '}' || byte == ']') {
            if (skipped) skipped--;
            else if (depth) count = first[--depth];
            is_free = 0;
        }
    }
    return 1;
}

/* The outcome in doubt: plain Python decodes the names. */
static PyObject *find_in_python(PyObject *object, PyObject *free) {
    PyObject *module = PyImport_ImportModule("tiered.records.pure_text");
    if (module == NULL) return NULL;
    PyObject *found = PyObject_CallMethod(module, "json_repeated_name", "OO", object, free);
    Py_DECREF(module);
    return found;
}

PyObject *native_json_repeated_name(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer buf;
    Name free[FREE_MAX];
    int differ;
    (void)self;
    if (count != 2 || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "json_repeated_name takes a buffer and a tuple of names");
        return NULL;
    }
    Py_ssize_t free_count = PyTuple_Size(args[1]);
    if (free_count > FREE_MAX) return find_in_python(args[0], args[1]);
    for (Py_ssize_t i = 0; i < free_count; i++) {
        char *name;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(args[1], i), &name, &free[i].size) < 0) return NULL;
        free[i].data = (const uint8_t *)name;
    }
    if (PyObject_GetBuffer(args[0], &buf, PyBUF_SIMPLE) < 0) return NULL;
    if (buf.len < RELEASE_RECORD_BYTES) {
        differ = names_differ(buf.buf, buf.len, free, free_count);
    } else {
        Py_BEGIN_ALLOW_THREADS
        differ = names_differ(buf.buf, buf.len, free, free_count);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&buf);
    if (!differ) return find_in_python(args[0], args[1]);
    return Py_NewRef(Py_None);
}
