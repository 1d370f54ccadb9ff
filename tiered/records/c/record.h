/* Records of an uncompressed section, one after the other. Inline: this is the inner loop of everything. */
#ifndef TIERED_RECORD_H
#define TIERED_RECORD_H

#include "native.h"

#define MIN_RECORD_BYTES 7

typedef enum {
    FINE,
    ENDS_EARLY,
    VARINT_TOO_LONG,
    BAD_LENGTH,
    BAD_KEY,
    BAD_VALUE,
    BAD_HEADER_COUNT,
    BAD_HEADER_KEY,
    BAD_HEADER_VALUE,
    LEFT_OVER,
    OUT_OF_ORDER,
    OFFSET_RANGE,
    TOO_MANY,
    /* of the section, not of one record */
    BAD_COUNT,
    AFTER_LAST,
} Fault;

typedef struct {
    const uint8_t *data;
    int32_t size; /* -1 for null */
} Span;

typedef struct {
    int64_t timestamp_delta;
    int32_t offset_delta;
    Span key, value;
    int32_t header_count;
    const uint8_t *headers, *end;
} Parsed;

typedef struct {
    const uint8_t *start, *at, *end;
    int64_t number, count, last_delta;
    int dense; /* offset deltas must be 0, 1, 2 ... */
    Fault fault;
    int64_t headers, objects; /* of TOO_MANY: the headers of the record, and the bound */
} Section;

/* Reads a zigzag varint at *at, never at `end` or beyond. `most` bounds its bytes, `last` the value of its last
 * byte. */
static inline Fault varint(const uint8_t **at, const uint8_t *end, int most, uint8_t last, uint64_t *out) {
    const uint8_t *p = *at;
    uint64_t value = 0;
    for (int i = 0; i < most; i++, p++) {
        if (p >= end) return ENDS_EARLY;
        value |= (uint64_t)(*p & 0x7f) << (7 * i);
        if (*p < 0x80) {
            if (i == most - 1 && *p > last) return VARINT_TOO_LONG;
            *out = (value >> 1) ^ (0 - (value & 1));
            *at = p + 1;
            return FINE;
        }
    }
    return VARINT_TOO_LONG;
}

static inline Fault varint32(const uint8_t **at, const uint8_t *end, int32_t *out) {
    uint64_t value;
    if (*at < end && **at < 0x80) {
        uint8_t byte = *(*at)++;
        *out = (int32_t)(byte >> 1) ^ -(int32_t)(byte & 1);
        return FINE;
    }
    Fault fault = varint(at, end, 5, 0x0f, &value);
    if (fault == FINE) *out = (int32_t)(int64_t)value;
    return fault;
}

static inline Fault varint64(const uint8_t **at, const uint8_t *end, int64_t *out) {
    uint64_t value;
    Fault fault = varint(at, end, 10, 0x01, &value);
    if (fault == FINE) *out = (int64_t)value;
    return fault;
}

/* Reads a length and that many bytes; `least` is -1 where null is allowed, else 0. */
static inline Fault span(const uint8_t **at, const uint8_t *end, int32_t least, Fault bad, Span *out) {
    int32_t size;
    Fault fault = varint32(at, end, &size);
    if (fault != FINE) return fault;
    if (size < least || size > end - *at) return bad;
    out->data = *at;
    out->size = size;
    if (size > 0) *at += size;
    return FINE;
}

static inline Fault header_next(const uint8_t **at, const uint8_t *end, Span *key, Span *value) {
    Fault fault = span(at, end, 0, BAD_HEADER_KEY, key);
    return fault != FINE ? fault : span(at, end, -1, BAD_HEADER_VALUE, value);
}

static inline Fault record_parse(const uint8_t **from, const uint8_t *end, Parsed *out) {
    const uint8_t *at = *from;
    int32_t length;
    Fault fault;
    if ((fault = varint32(&at, end, &length)) != FINE) return fault;
    if (length < 0 || length > end - at) return BAD_LENGTH;
    end = at + length;
    if (at >= end) return ENDS_EARLY;
    at++; /* attributes: unused */
    if ((fault = varint64(&at, end, &out->timestamp_delta)) != FINE) return fault;
    if ((fault = varint32(&at, end, &out->offset_delta)) != FINE) return fault;
    if ((fault = span(&at, end, -1, BAD_KEY, &out->key)) != FINE) return fault;
    if ((fault = span(&at, end, -1, BAD_VALUE, &out->value)) != FINE) return fault;
    if ((fault = varint32(&at, end, &out->header_count)) != FINE) return fault;
    if (out->header_count < 0 || out->header_count > (end - at) / 2) return BAD_HEADER_COUNT;
    out->headers = at;
    for (int32_t i = 0; i < out->header_count; i++) {
        Span key, value;
        if ((fault = header_next(&at, end, &key, &value)) != FINE) return fault;
    }
    if (at != end) return LEFT_OVER;
    out->end = end;
    *from = end;
    return FINE;
}

/* Reads a zigzag varint of at most three bytes at p, and returns its end. A longer one sets *is_long. */
static inline const uint8_t *varint_quick(const uint8_t *p, int32_t *out, int *is_long) {
    uint32_t value = p[0];
    if (value < 0x80) {
        p += 1;
    } else if (p[1] < 0x80) {
        value = (value & 0x7f) | (uint32_t)p[1] << 7;
        p += 2;
    } else {
        value = (value & 0x7f) | (uint32_t)(p[1] & 0x7f) << 7 | (uint32_t)p[2] << 14;
        *is_long |= p[2] >= 0x80;
        p += 3;
    }
    *out = (int32_t)(value >> 1) ^ -(int32_t)(value & 1);
    return p;
}

#define VARINT_QUICK_BYTES 3

/* Parses a plain record: well-formed, with short varints and without headers. Returns 0, with nothing read, for any
 * other, and for one so near to `end` that a varint of it could be read beyond. `record_parse` judges those. The place
 * of the next record follows from the length alone: the processor parses it meanwhile. */
static inline int record_quick(const uint8_t **from, const uint8_t *end, Parsed *out) {
    const uint8_t *p = *from;
    int32_t length, timestamp_delta;
    int is_long = 0;
    if (end - p < 5 * VARINT_QUICK_BYTES) return 0;
    p = varint_quick(p, &length, &is_long);
    if (length < 0 || length > end - p) return 0;
    const uint8_t *stop = p + length;
    p = varint_quick(p + 1, &timestamp_delta, &is_long);
    p = varint_quick(p, &out->offset_delta, &is_long);
    p = varint_quick(p, &out->key.size, &is_long);
    out->key.data = p;
    int32_t key_bytes = out->key.size > 0 ? out->key.size : 0;
    if (is_long || out->key.size < -1 || key_bytes > end - p - (VARINT_QUICK_BYTES + 1)) return 0;
    p += key_bytes;
    p = varint_quick(p, &out->value.size, &is_long);
    out->value.data = p;
    if (is_long || out->value.size < -1 || out->value.size >= end - p) return 0;
    if (out->value.size > 0) p += out->value.size;
    if (*p != 0 || p + 1 != stop) return 0;
    out->timestamp_delta = timestamp_delta;
    out->header_count = 0;
    out->headers = out->end = *from = stop;
    return 1;
}

static inline int section_open(Section *section, const void *data, Py_ssize_t size, int64_t count, int dense) {
    section->start = section->at = data;
    section->end = section->start + size;
    section->number = 0;
    section->count = count;
    section->last_delta = -1;
    section->dense = dense;
    section->fault = count < 0 || count > size / MIN_RECORD_BYTES ? BAD_COUNT : FINE;
    return section->fault == FINE ? 0 : -1;
}

/* Returns 1 with the next record, 0 at the end, -1 with `fault` set. */
static inline int section_next(Section *section, Parsed *parsed) {
    if (section->number == section->count) {
        if (section->at == section->end) return 0;
        section->fault = AFTER_LAST;
        return -1;
    }
    if (!record_quick(&section->at, section->end, parsed))
        section->fault = record_parse(&section->at, section->end, parsed);
    if (section->fault == FINE) {
        int64_t delta = parsed->offset_delta;
        if (section->dense ? delta != section->number : delta <= section->last_delta) section->fault = OUT_OF_ORDER;
    }
    if (section->fault != FINE) return -1;
    section->last_delta = parsed->offset_delta;
    section->number++;
    return 1;
}

/* Computes offset and timestamp of the last record of section_next. A timestamp beyond 64 bits wraps around, as in
 * Kafka's clients. Returns -1 with `fault` set if the offset is beyond 64 bits. */
static inline int section_place(Section *section, const Parsed *parsed, int64_t base_offset, int64_t base_timestamp,
                                int64_t append_time, int64_t *offset, int64_t *timestamp) {
    if (__builtin_add_overflow(base_offset, (int64_t)parsed->offset_delta, offset))
        section->fault = OFFSET_RANGE;
    *timestamp = append_time != -1 ? append_time
                                   : (int64_t)((uint64_t)base_timestamp + (uint64_t)parsed->timestamp_delta);
    if (section->fault == FINE) return 0;
    section->number--;
    return -1;
}

#define FAULT_ROOM 128

/* Formats `fault` with the text of pure.py. */
void section_say(const Section *section, char *words, size_t room);

/* Sets TooLarge for TOO_MANY, and Corrupt for any other `fault`. Always returns NULL. */
PyObject *section_raise(const Section *section);

#endif
