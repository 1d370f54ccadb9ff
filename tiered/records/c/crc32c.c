/* CRC-32C by the fastest of three methods that the processor supports.
 *
 * Tables: eight bytes at a time, everywhere.
 * CRC instruction (x86 SSE4.2, ARM): takes one word a cycle but gives its result three cycles later. So three
 * neighbouring blocks are summed at once, and the sums combined: a CRC followed by n zero bytes is the CRC times x^(8n)
 * modulo the polynomial, which is four table look-ups for each of the two lengths of block used.
 * Carry-less multiplication (x86 AVX-512): 256 bytes are held as sixteen polynomials, each moved over the next 256
 * bytes by multiplying it with a power of x modulo the polynomial; what is left at the end is summed as data. */
#include "native.h"

#define POLYNOMIAL 0x82f63b78u
#define LONG_BLOCK 4096
#define SHORT_BLOCK 256

typedef uint32_t (*extend_fn)(uint32_t, const uint8_t *, size_t);

static uint32_t by_byte[8][256];

static uint64_t load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static uint32_t extend_tables(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = by_byte[7][low & 0xff] ^ by_byte[6][low >> 8 & 0xff] ^ by_byte[5][low >> 16 & 0xff] ^
              by_byte[4][low >> 24] ^ by_byte[3][p[4]] ^ by_byte[2][p[5]] ^ by_byte[1][p[6]] ^ by_byte[0][p[7]];
    }
    for (; n; p++, n--) crc = crc >> 8 ^ by_byte[0][(crc ^ *p) & 0xff];
    return crc;
}

#define WAYS_MOST 3
static extend_fn ways[WAYS_MOST] = {extend_tables};
static int way_count = 1; /* the last is the fastest, and the one that is used */

static void tables_init(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        by_byte[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) by_byte[k][i] = by_byte[k - 1][i] >> 8 ^ by_byte[0][by_byte[k - 1][i] & 0xff];
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#if defined(__clang__)
#define CRC32_TARGET "sse4.2,crc32" /* newer ones do not take the instruction for a part of SSE 4.2 */
#else
#define CRC32_TARGET "sse4.2"
#endif
#define HARDWARE __attribute__((target(CRC32_TARGET)))
#define STEP8(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))
#define STEP1(crc, byte) _mm_crc32_u8(crc, byte)
static int hardware_present(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#include <arm_acle.h>
#define HARDWARE __attribute__((target("+crc")))
#define STEP8(crc, word) __crc32cd(crc, word)
#define STEP1(crc, byte) __crc32cb(crc, byte)
#if defined(__linux__)
#include <sys/auxv.h>
static int hardware_present(void) { return (getauxval(AT_HWCAP) & (1 << 7)) != 0; }
#else
static int hardware_present(void) { return 1; }
#endif
#endif

#ifdef HARDWARE
static uint32_t after_long[4][256], after_short[4][256];

/* a * b modulo the polynomial, both bit-reflected: x^0 is the top bit. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^n modulo the polynomial. */
static uint32_t power_of_x(uint32_t n) {
    uint32_t power = 1u << 31, square = 1u << 30;
    for (; n; n >>= 1, square = multiply(square, square))
        if (n & 1) power = multiply(power, square);
    return power;
}

static void zeros_init(uint32_t table[4][256], uint32_t zeros) {
    uint32_t power = power_of_x(8 * zeros);
    for (int k = 0; k < 4; k++)
        for (uint32_t i = 0; i < 256; i++) table[k][i] = multiply(power, i << (8 * k));
}

static uint32_t shift(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

HARDWARE static inline uint32_t triple(uint32_t crc, const uint8_t *p, size_t block, uint32_t table[4][256]) {
    uint32_t second = 0, third = 0;
    for (const uint8_t *end = p + block; p < end; p += 8) {
        crc = STEP8(crc, load64(p));
        second = STEP8(second, load64(p + block));
        third = STEP8(third, load64(p + 2 * block));
    }
    return shift(table, shift(table, crc) ^ second) ^ third;
}

HARDWARE static uint32_t extend_hardware(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 3 * LONG_BLOCK; p += 3 * LONG_BLOCK, n -= 3 * LONG_BLOCK) crc = triple(crc, p, LONG_BLOCK, after_long);
    for (; n >= 3 * SHORT_BLOCK; p += 3 * SHORT_BLOCK, n -= 3 * SHORT_BLOCK)
        crc = triple(crc, p, SHORT_BLOCK, after_short);
    for (; n >= 8; p += 8, n -= 8) crc = STEP8(crc, load64(p));
    for (; n; p++, n--) crc = STEP1(crc, *p);
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>
#define FOLDING __attribute__((target(CRC32_TARGET ",avx512f,vpclmulqdq,pclmul")))
#define FOLD_BLOCK 256
#define FOLD_LEAST 512

static uint64_t over_block[2], over_vector[2], over_lane[2];

/* Multipliers that move the two halves of a 128-bit lane over `bits`. Bits are reflected, so a product comes out one
 * power of x too high, and the 32 bits of a remainder stand in the upper half of a word. */
static void fold_init(uint64_t multipliers[2], uint32_t bits) {
    multipliers[0] = (uint64_t)power_of_x(bits + 63) << 32;
    multipliers[1] = (uint64_t)power_of_x(bits - 1) << 32;
}

FOLDING static inline __m512i fold(__m512i x, __m512i multipliers, __m512i next) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, multipliers, 0x00),
                                     _mm512_clmulepi64_epi128(x, multipliers, 0x11), next, 0x96);
}

FOLDING static inline __m128i fold_lane(__m128i x, __m128i multipliers, __m128i next) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, multipliers, 0x00),
                                       _mm_clmulepi64_si128(x, multipliers, 0x11)), next);
}

FOLDING static uint32_t extend_folding(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < FOLD_LEAST) return extend_hardware(crc, p, n);
    const __m512i block = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)over_block));
    const __m512i vector = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)over_vector));
    const __m128i lane = _mm_loadu_si128((const void *)over_lane);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = _mm512_loadu_si512(p + 64), c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    for (p += FOLD_BLOCK, n -= FOLD_BLOCK; n >= FOLD_BLOCK; p += FOLD_BLOCK, n -= FOLD_BLOCK) {
        a = fold(a, block, _mm512_loadu_si512(p));
        b = fold(b, block, _mm512_loadu_si512(p + 64));
        c = fold(c, block, _mm512_loadu_si512(p + 128));
        d = fold(d, block, _mm512_loadu_si512(p + 192));
    }
    d = fold(fold(fold(a, vector, b), vector, c), vector, d);
    __m128i x = fold_lane(_mm512_extracti32x4_epi32(d, 0), lane, _mm512_extracti32x4_epi32(d, 1));
    x = fold_lane(x, lane, _mm512_extracti32x4_epi32(d, 2));
    x = fold_lane(x, lane, _mm512_extracti32x4_epi32(d, 3));
    uint8_t rest[16];
    _mm_storeu_si128((void *)rest, x);
    return extend_hardware(extend_hardware(0, rest, sizeof rest), p, n);
}

static int folding_present(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"); }
#endif
#endif

void crc32c_init(void) {
    tables_init();
#ifdef HARDWARE
    if (!hardware_present()) return;
    zeros_init(after_long, LONG_BLOCK);
    zeros_init(after_short, SHORT_BLOCK);
    ways[way_count++] = extend_hardware;
#if defined(__x86_64__)
    if (!folding_present()) return;
    fold_init(over_block, 8 * FOLD_BLOCK);
    fold_init(over_vector, 8 * 64);
    fold_init(over_lane, 8 * 16);
    ways[way_count++] = extend_folding;
#endif
#endif
}

uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) {
    return ~ways[way_count - 1](~crc, data, size);
}

/* Returns the CRC of data by each method that this processor supports: tests would otherwise see the fastest only. */
PyObject *native_crc32c_ways(PyObject *self, PyObject *object) {
    Py_buffer data;
    (void)self;
    if (PyObject_GetBuffer(object, &data, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *sums = PyList_New(0);
    for (int i = 0; sums != NULL && i < way_count; i++) {
        PyObject *sum = PyLong_FromUnsignedLong(~ways[i](~0u, data.buf, (size_t)data.len));
        if (sum == NULL || PyList_Append(sums, sum) < 0) Py_CLEAR(sums);
        Py_XDECREF(sum);
    }
    PyBuffer_Release(&data);
    return sums;
}

/* Takes (data, value=0) by position: a call must not cost more than the CRC of a small batch. */
PyObject *native_crc32c(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer data;
    unsigned long crc = 0;
    (void)self;
    if (count < 1 || count > 2) {
        PyErr_Format(PyExc_TypeError, "crc32c takes data and a value, not %zd arguments", count);
        return NULL;
    }
    if (count == 2 && (crc = PyLong_AsUnsignedLong(args[1])) == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    if (data.len < RELEASE_SUM_BYTES) {
        crc = crc32c_extend((uint32_t)crc, data.buf, (size_t)data.len);
    } else {
        Py_BEGIN_ALLOW_THREADS
        crc = crc32c_extend((uint32_t)crc, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}
