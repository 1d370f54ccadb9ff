/* The header of record batch v2. */
#ifndef TIERED_BATCH_H
#define TIERED_BATCH_H

#include "record.h"

#define HEADER_BYTES 61
#define LENGTH_FROM 12
#define MIN_LENGTH (HEADER_BYTES - LENGTH_FROM)
#define MAGIC 2
#define CRC_FROM 21
#define CODEC_MASK 0x07
#define CODEC_LAST 4
#define APPEND_TIME 0x08
#define TRANSACTIONAL 0x10
#define CONTROL 0x20
#define DELETE_HORIZON 0x40
#define WHY_ROOM (FAULT_ROOM + 16)

static inline int64_t big(const uint8_t *p, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | p[i];
    int spare = 64 - 8 * bytes;
    return (int64_t)(value << spare) >> spare;
}

static inline void big_put(uint8_t *p, int bytes, int64_t value) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) p[i] = (uint8_t)value;
}

/* Returns the size of the batch at p, or 0 with `why` set. */
int64_t batch_proves(const uint8_t *p, Py_ssize_t left, int check_crc, int check_records, char *why, size_t room);

#endif
