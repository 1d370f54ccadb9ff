/* Records of many sections as Arrow buffers: one pass that sizes the columns, one that fills them.
 *
 * Both run without the GIL. The buffers that they read may be writable and change between the passes, so the second
 * trusts nothing of the first: it checks every write against the allocated size. */
#include "record.h"

#include <stdlib.h>

enum { OFFSET = 1, TIMESTAMP = 2, TIMESTAMP_TYPE = 4, KEY = 8, VALUE = 16, HEADERS = 32 };
static const char *const column_names[] = {"offset", "timestamp", "timestampType", "key", "value", "headers"};
#define COLUMNS 6

typedef struct {
    Py_buffer payload;
    long long base_offset, base_timestamp, append_time, count;
} Input;

/* Offsets, bytes and validity of one Arrow binary column; `rows` and `bytes` are the allocated sizes, the others
 * what is used. */
typedef struct {
    int64_t rows, bytes, nulls;
    int64_t row, used;
    PyObject *offsets_object, *data_object, *valid_object;
    int32_t *offsets;
    uint8_t *data, *valid;
} Binary;

typedef struct {
    Input *inputs;
    Py_ssize_t input_count;
    long long start, end;
    int columns;
    int64_t rows, row, header_nulls;
    int wide; /* a header key is not plain ASCII */
    int changed;
    Binary key, value, header_key, header_value;
    PyObject *offset_object, *timestamp_object, *type_object, *list_object, *list_valid_object;
    int64_t *offset, *timestamp;
    int32_t *type, *list;
    uint8_t *list_valid;
    Section section;
} Table;

typedef int (*Visit)(Table *, const Input *, const Parsed *, int64_t offset, int64_t timestamp);

/* Visits every record in the range, in order. Returns -1 with the fault in table->section, or with table->changed set
 * by the visitor. */
static int table_pass(Table *table, Visit visit) {
    for (Py_ssize_t i = 0; i < table->input_count; i++) {
        const Input *input = &table->inputs[i];
        Section *section = &table->section;
        Parsed parsed;
        int more;
        if (section_open(section, input->payload.buf, input->payload.len, input->count, 0) < 0) return -1;
        while ((more = section_next(section, &parsed)) > 0) {
            int64_t offset, timestamp;
            if (section_place(section, &parsed, input->base_offset, input->base_timestamp, input->append_time, &offset,
                              &timestamp) < 0)
                return -1;
            if (offset >= table->start && offset < table->end && visit(table, input, &parsed, offset, timestamp) < 0)
                return -1;
        }
        if (more < 0) return -1;
    }
    return 0;
}

static void binary_size(Binary *binary, Span span) {
    binary->rows++;
    if (span.size < 0) binary->nulls++;
    else binary->bytes += span.size;
}

static int is_wide(Span span) {
    uint8_t bits = 0;
    for (int32_t i = 0; i < span.size; i++) bits |= span.data[i];
    return bits >= 0x80;
}

static int visit_size(Table *table, const Input *input, const Parsed *parsed, int64_t offset, int64_t timestamp) {
    (void)input, (void)offset, (void)timestamp;
    table->rows++;
    binary_size(&table->key, parsed->key);
    binary_size(&table->value, parsed->value);
    if (!(table->columns & HEADERS)) return 0;
    const uint8_t *at = parsed->headers;
    table->header_nulls += parsed->header_count == 0;
    for (int32_t i = 0; i < parsed->header_count; i++) {
        Span key, value;
        if (header_next(&at, parsed->end, &key, &value) != FINE) return table->changed = 1, -1;
        binary_size(&table->header_key, key);
        binary_size(&table->header_value, value);
        table->wide |= is_wide(key);
    }
    return 0;
}

static int binary_fill(Binary *binary, Span span) {
    int64_t size = span.size < 0 ? 0 : span.size;
    if (binary->row >= binary->rows || binary->used + size > binary->bytes) return -1;
    memcpy(binary->data + binary->used, span.data, (size_t)size);
    if (binary->valid != NULL && span.size >= 0) binary->valid[binary->row >> 3] |= (uint8_t)(1 << (binary->row & 7));
    binary->used += size;
    binary->offsets[++binary->row] = (int32_t)binary->used;
    return 0;
}

static int fill_headers(Table *table, const Parsed *parsed) {
    const uint8_t *at = parsed->headers;
    for (int32_t i = 0; i < parsed->header_count; i++) {
        Span key, value;
        if (header_next(&at, parsed->end, &key, &value) != FINE || binary_fill(&table->header_key, key) < 0 ||
            binary_fill(&table->header_value, value) < 0)
            return -1;
    }
    table->list[table->row + 1] = (int32_t)table->header_key.row;
    if (table->list_valid != NULL && parsed->header_count)
        table->list_valid[table->row >> 3] |= (uint8_t)(1 << (table->row & 7));
    return 0;
}

static int64_t micros(int64_t millis) {
    int64_t out;
    if (__builtin_mul_overflow(millis, 1000, &out)) return millis < 0 ? INT64_MIN : INT64_MAX;
    return out;
}

static int visit_fill(Table *table, const Input *input, const Parsed *parsed, int64_t offset, int64_t timestamp) {
    int columns = table->columns;
    if (table->row >= table->rows) return table->changed = 1, -1;
    if (columns & OFFSET) table->offset[table->row] = offset;
    if (columns & TIMESTAMP) table->timestamp[table->row] = micros(timestamp);
    if (columns & TIMESTAMP_TYPE) table->type[table->row] = input->append_time != -1;
    if ((columns & KEY && binary_fill(&table->key, parsed->key) < 0) ||
        (columns & VALUE && binary_fill(&table->value, parsed->value) < 0) ||
        (columns & HEADERS && fill_headers(table, parsed) < 0))
        return table->changed = 1, -1;
    table->row++;
    return 0;
}

/* Returns a bytes object of `size`, with its memory in *memory. */
static PyObject *buffer_new(int64_t size, void *memory) {
    PyObject *object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (object != NULL) *(char **)memory = PyBytes_AsString(object);
    return object;
}

static PyObject *bitmap_new(int64_t rows, int64_t nulls, uint8_t **memory) {
    if (nulls == 0) {
        *memory = NULL;
        return Py_NewRef(Py_None);
    }
    PyObject *object = buffer_new((rows + 7) / 8, memory);
    if (object != NULL) memset(*memory, 0, (size_t)(rows + 7) / 8);
    return object;
}

static int binary_new(Binary *binary) {
    if (binary->bytes > INT32_MAX || binary->rows > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "an Arrow column passes 2 GiB");
        return -1;
    }
    if ((binary->offsets_object = buffer_new((binary->rows + 1) * 4, &binary->offsets)) == NULL ||
        (binary->data_object = buffer_new(binary->bytes, &binary->data)) == NULL ||
        (binary->valid_object = bitmap_new(binary->rows, binary->nulls, &binary->valid)) == NULL)
        return -1;
    binary->offsets[0] = 0;
    return 0;
}

static int table_new(Table *table) {
    int columns = table->columns;
    if ((columns & OFFSET && (table->offset_object = buffer_new(table->rows * 8, &table->offset)) == NULL) ||
        (columns & TIMESTAMP && (table->timestamp_object = buffer_new(table->rows * 8, &table->timestamp)) == NULL) ||
        (columns & TIMESTAMP_TYPE && (table->type_object = buffer_new(table->rows * 4, &table->type)) == NULL) ||
        (columns & KEY && binary_new(&table->key) < 0) || (columns & VALUE && binary_new(&table->value) < 0))
        return -1;
    if (!(columns & HEADERS)) return 0;
    if (binary_new(&table->header_key) < 0 || binary_new(&table->header_value) < 0 ||
        (table->list_object = buffer_new((table->rows + 1) * 4, &table->list)) == NULL ||
        (table->list_valid_object = bitmap_new(table->rows, table->header_nulls, &table->list_valid)) == NULL)
        return -1;
    table->list[0] = 0;
    return 0;
}

/* Arrow strings are UTF-8, but header keys may be any bytes: invalid UTF-8 becomes replacement characters. */
static int keys_to_utf8(Binary *keys) {
    PyObject *parts = PyList_New(0), *nothing = PyBytes_FromStringAndSize(NULL, 0), *joined = NULL;
    PyObject *offsets_object = NULL;
    int32_t *offsets;
    int64_t used = 0;
    if (parts == NULL || nothing == NULL || (offsets_object = buffer_new((keys->rows + 1) * 4, &offsets)) == NULL)
        goto done;
    offsets[0] = 0;
    for (int64_t i = 0; i < keys->rows; i++) {
        const char *from = (const char *)keys->data + keys->offsets[i];
        PyObject *text = PyUnicode_DecodeUTF8(from, keys->offsets[i + 1] - keys->offsets[i], "replace");
        PyObject *bytes = text == NULL ? NULL : PyUnicode_AsUTF8String(text);
        int added = bytes == NULL ? -1 : PyList_Append(parts, bytes);
        if (added == 0) used += PyBytes_Size(bytes);
        Py_XDECREF(text);
        Py_XDECREF(bytes);
        if (added < 0) goto done;
        if (used > INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "an Arrow column passes 2 GiB");
            goto done;
        }
        offsets[i + 1] = (int32_t)used;
    }
    if ((joined = PyObject_CallMethod(nothing, "join", "O", parts)) != NULL) {
        Py_DECREF(keys->offsets_object);
        Py_DECREF(keys->data_object);
        keys->offsets_object = offsets_object;
        keys->data_object = joined;
        offsets_object = NULL;
    }
done:
    Py_XDECREF(parts);
    Py_XDECREF(nothing);
    Py_XDECREF(offsets_object);
    return joined == NULL ? -1 : 0;
}

static int column_put(PyObject *columns, int column, PyObject *buffers) {
    int outcome = buffers == NULL ? -1 : PyDict_SetItemString(columns, column_names[column], buffers);
    Py_XDECREF(buffers);
    return outcome;
}

static PyObject *binary_buffers(const Binary *binary) {
    return Py_BuildValue("OOO", binary->valid_object, binary->offsets_object, binary->data_object);
}

static PyObject *table_columns(const Table *table) {
    const Binary *keys = &table->header_key, *values = &table->header_value;
    int columns = table->columns;
    PyObject *out = PyDict_New();
    if (out == NULL) return NULL;
    if ((columns & OFFSET && column_put(out, 0, Py_BuildValue("OO", Py_None, table->offset_object)) < 0) ||
        (columns & TIMESTAMP && column_put(out, 1, Py_BuildValue("OO", Py_None, table->timestamp_object)) < 0) ||
        (columns & TIMESTAMP_TYPE && column_put(out, 2, Py_BuildValue("OO", Py_None, table->type_object)) < 0) ||
        (columns & KEY && column_put(out, 3, binary_buffers(&table->key)) < 0) ||
        (columns & VALUE && column_put(out, 4, binary_buffers(&table->value)) < 0) ||
        (columns & HEADERS &&
         column_put(out, 5,
                    Py_BuildValue("OOOOOOO", table->list_valid_object, table->list_object, keys->offsets_object,
                                  keys->data_object, values->valid_object, values->offsets_object,
                                  values->data_object)) < 0)) {
        Py_DECREF(out);
        return NULL;
    }
    return out;
}

static PyObject *table_object(const Table *table) {
    PyObject *result = named_tuple(ArrowColumns_type, 3);
    PyObject *rows = PyLong_FromLongLong(table->rows), *headers = PyLong_FromLongLong(table->header_key.rows);
    PyObject *columns = table_columns(table);
    if (result == NULL || rows == NULL || headers == NULL || columns == NULL) {
        Py_XDECREF(result);
        Py_XDECREF(rows);
        Py_XDECREF(headers);
        Py_XDECREF(columns);
        return NULL;
    }
    PyTuple_SetItem(result, 0, rows);
    PyTuple_SetItem(result, 1, headers);
    PyTuple_SetItem(result, 2, columns);
    return result;
}

static void binary_free(Binary *binary) {
    Py_XDECREF(binary->offsets_object);
    Py_XDECREF(binary->data_object);
    Py_XDECREF(binary->valid_object);
}

static void table_free(Table *table) {
    for (Py_ssize_t i = 0; i < table->input_count; i++) PyBuffer_Release(&table->inputs[i].payload);
    free(table->inputs);
    binary_free(&table->key);
    binary_free(&table->value);
    binary_free(&table->header_key);
    binary_free(&table->header_value);
    Py_XDECREF(table->offset_object);
    Py_XDECREF(table->timestamp_object);
    Py_XDECREF(table->type_object);
    Py_XDECREF(table->list_object);
    Py_XDECREF(table->list_valid_object);
}

static int column_named(PyObject *name) {
    for (int i = 0; i < COLUMNS; i++)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, column_names[i]) == 0) return 1 << i;
    PyErr_Format(PyExc_ValueError, "unknown column %R", name);
    return -1;
}

static int read_columns(Table *table, PyObject *collection) {
    PyObject *names = PySequence_Tuple(collection);
    if (names == NULL) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        int column = column_named(PyTuple_GetItem(names, i));
        if (column < 0) {
            Py_DECREF(names);
            return -1;
        }
        table->columns |= column;
    }
    Py_DECREF(names);
    return 0;
}

/* Acquires the buffers of all sections. Returns their total size, or -1. */
static Py_ssize_t read_sections(Table *table, PyObject *sequence) {
    PyObject *sections = PySequence_Tuple(sequence);
    Py_ssize_t total = 0;
    if (sections == NULL) return -1;
    Py_ssize_t count = PyTuple_Size(sections);
    if ((table->inputs = calloc((size_t)count + 1, sizeof(Input))) == NULL) {
        PyErr_NoMemory();
        count = total = -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Input *input = &table->inputs[i];
        PyObject *section = PyTuple_GetItem(sections, i);
        if (!PyTuple_Check(section)) {
            PyErr_SetString(PyExc_TypeError, "a section is a tuple");
            total = -1;
            break;
        }
        if (!PyArg_ParseTuple(section, "y*LLLL", &input->payload, &input->base_offset, &input->base_timestamp,
                              &input->append_time, &input->count)) {
            total = -1;
            break;
        }
        table->input_count++;
        total += input->payload.len;
    }
    Py_DECREF(sections);
    return total;
}

static int run(Table *table, Visit visit, int release) {
    int outcome;
    if (!release) {
        outcome = table_pass(table, visit);
    } else {
        Py_BEGIN_ALLOW_THREADS
        outcome = table_pass(table, visit);
        Py_END_ALLOW_THREADS
    }
    if (table->changed) PyErr_SetString(Corrupt_type, "records changed while they were read");
    else if (outcome < 0) section_raise(&table->section);
    return outcome;
}

/* True if all sized rows and bytes are filled: no memory is left uninitialized. */
static int is_full(const Table *table) {
    return table->row == table->rows && (!(table->columns & KEY) || table->key.used == table->key.bytes) &&
           (!(table->columns & VALUE) || table->value.used == table->value.bytes) &&
           (!(table->columns & HEADERS) ||
            (table->header_key.row == table->header_key.rows && table->header_key.used == table->header_key.bytes &&
             table->header_value.used == table->header_value.bytes));
}

PyObject *native_arrow(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sections", "columns", "start", "end", NULL};
    PyObject *sections, *columns, *result = NULL;
    Table table = {.start = INT64_MIN, .end = INT64_MAX};
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|LL", names, &sections, &columns, &table.start, &table.end))
        return NULL;
    Py_ssize_t total = read_columns(&table, columns) < 0 ? -1 : read_sections(&table, sections);
    int release = total >= RELEASE_RECORD_BYTES;
    if (total < 0 || run(&table, visit_size, release) < 0 || table_new(&table) < 0 ||
        run(&table, visit_fill, release) < 0)
        goto done;
    if (!is_full(&table)) {
        PyErr_SetString(Corrupt_type, "records changed while they were read");
        goto done;
    }
    if (table.columns & HEADERS && table.wide && keys_to_utf8(&table.header_key) < 0) goto done;
    result = table_object(&table);
done:
    table_free(&table);
    return result;
}
