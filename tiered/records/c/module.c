/* The module `tiered.records._native`: the functions of pure.py in C. pure.py describes each of them. */
#include "native.h"

PyObject *Record_type, *Walked_type, *Batches_type, *ArrowColumns_type, *Corrupt_type, *TooLarge_type,
    *PutResult_type, *FilterResult_type;

PyObject *named_tuple(PyObject *type, Py_ssize_t size) {
    allocfunc alloc = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    return alloc((PyTypeObject *)type, size);
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"crc32c", (PyCFunction)(void (*)(void))native_crc32c, METH_FASTCALL, NULL},
    {"crc32c_ways", native_crc32c_ways, METH_O, NULL},
    {"fit", (PyCFunction)(void (*)(void))native_fit, METH_FASTCALL, NULL},
    {"walk", KEYWORDS(native_walk), NULL},
    {"check_records", KEYWORDS(native_check_records), NULL},
    {"split_records", native_split_records, METH_VARARGS, NULL},
    {"time_range", native_time_range, METH_VARARGS, NULL},
    {"rows", KEYWORDS(native_rows), NULL},
    {"some_rows", KEYWORDS(native_some_rows), NULL},
    {"first_at_or_after", KEYWORDS(native_first_at_or_after), NULL},
    {"outside", KEYWORDS(native_outside), NULL},
    {"encode_records", KEYWORDS(native_encode_records), NULL},
    {"arrow", KEYWORDS(native_arrow), NULL},
    {"hash_rows", native_hash_rows, METH_VARARGS, NULL},
    {"murmur2", native_murmur2, METH_O, NULL},
    {"json_spans", (PyCFunction)(void (*)(void))native_json_spans, METH_FASTCALL, NULL},
    {"json_elements", native_json_elements, METH_O, NULL},
    {"json_entries", native_json_entries, METH_VARARGS, NULL},
    {"json_repeated_name", (PyCFunction)(void (*)(void))native_json_repeated_name, METH_FASTCALL, NULL},
    {"put_keys", native_put_keys, METH_VARARGS, NULL},
    {"filter_batches", native_filter_batches, METH_VARARGS, NULL},
    {"find_keyless", native_find_keyless, METH_VARARGS, NULL},
    {"find_text", native_find_text, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

static int take(const char *module_name, const char *name, PyObject **place) {
    PyObject *module = PyImport_ImportModule(module_name);
    if (module == NULL) return -1;
    *place = PyObject_GetAttrString(module, name);
    Py_DECREF(module);
    return *place == NULL ? -1 : 0;
}

PyMODINIT_FUNC PyInit__native(void) {
    if (take("tiered.records.model", "Record", &Record_type) < 0 ||
        take("tiered.records.model", "WalkedBatch", &Walked_type) < 0 ||
        take("tiered.records.model", "WalkResult", &Batches_type) < 0 ||
        take("tiered.records.model", "ArrowColumns", &ArrowColumns_type) < 0 ||
        take("tiered.records.model", "PutResult", &PutResult_type) < 0 ||
        take("tiered.records.model", "FilterResult", &FilterResult_type) < 0 ||
        take("tiered.errors", "Corrupt", &Corrupt_type) < 0 || take("tiered.errors", "TooLarge", &TooLarge_type) < 0)
        return NULL;
    crc32c_init();
    return PyModule_Create(&definition);
}
