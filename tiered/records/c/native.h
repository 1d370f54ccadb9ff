/* Shared declarations of the extension. All code here reads unchecked bytes: every length and count is compared with
 * the bytes that are there before it is used. Limited API of Python 3.11 only. */
#ifndef TIERED_NATIVE_H
#define TIERED_NATIVE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Work on fewer bytes keeps the GIL: after a release it may take a whole switch interval (5 ms) to get it back. CRCs
 * run at tens of GB/s, so they take long only from here on. Records take ten times as long for the same bytes. */
#define RELEASE_SUM_BYTES (4 * 1024 * 1024)
#define RELEASE_RECORD_BYTES (512 * 1024)

/* Default limit on records and headers that become objects at once, as in model.py. */
#define OBJECTS_MAX (1 << 20)

/* The named tuples of model.py and the errors of errors.py, set once when the module is made. */
extern PyObject *Record_type, *Walked_type, *Batches_type, *ArrowColumns_type, *Corrupt_type, *TooLarge_type,
    *PutResult_type, *FilterResult_type;

/* Returns a new instance of a named tuple with room for `size` items, to be filled by PyTuple_SetItem. */
PyObject *named_tuple(PyObject *type, Py_ssize_t size);

uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size);
void crc32c_init(void);

PyObject *native_crc32c(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *native_crc32c_ways(PyObject *, PyObject *);
PyObject *native_fit(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *native_walk(PyObject *, PyObject *, PyObject *);
PyObject *native_check_records(PyObject *, PyObject *, PyObject *);
PyObject *native_split_records(PyObject *, PyObject *);
PyObject *native_time_range(PyObject *, PyObject *);
PyObject *native_rows(PyObject *, PyObject *, PyObject *);
PyObject *native_some_rows(PyObject *, PyObject *, PyObject *);
PyObject *native_first_at_or_after(PyObject *, PyObject *, PyObject *);
PyObject *native_outside(PyObject *, PyObject *, PyObject *);
PyObject *native_encode_records(PyObject *, PyObject *, PyObject *);
PyObject *native_arrow(PyObject *, PyObject *, PyObject *);
PyObject *native_hash_rows(PyObject *, PyObject *);
PyObject *native_murmur2(PyObject *, PyObject *);
PyObject *native_json_spans(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *native_json_elements(PyObject *, PyObject *);
PyObject *native_json_entries(PyObject *, PyObject *);
PyObject *native_json_repeated_name(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *native_put_keys(PyObject *, PyObject *);
PyObject *native_filter_batches(PyObject *, PyObject *);
PyObject *native_find_keyless(PyObject *, PyObject *);
PyObject *native_find_text(PyObject *, PyObject *);

#endif
