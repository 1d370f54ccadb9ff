/* CRC-32C by the processor's own instruction, three runs at once to hide its latency; by tables elsewhere.
 *
 * The instruction takes one word a cycle but gives its result three cycles later. So three neighbouring blocks are
 * summed at once, and the sums joined: a CRC followed by n zero bytes is the CRC times x^(8n) modulo the polynomial,
 * which is four table look-ups for the two lengths of block used. */
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

static extend_fn extend = extend_tables;

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
#define HARDWARE __attribute__((target("sse4.2")))
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

static void zeros_init(uint32_t table[4][256], size_t zeros) {
    uint32_t power = 1u << 31, square = 1u << 30;
    for (size_t bits = zeros * 8; bits; bits >>= 1, square = multiply(square, square))
        if (bits & 1) power = multiply(power, square);
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
#endif

void crc32c_init(void) {
    tables_init();
#ifdef HARDWARE
    if (hardware_present()) {
        zeros_init(after_long, LONG_BLOCK);
        zeros_init(after_short, SHORT_BLOCK);
        extend = extend_hardware;
    }
#endif
}

uint32_t crc32c_extend(uint32_t crc, const uint8_t *data, size_t size) { return ~extend(~crc, data, size); }

PyObject *native_crc32c(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"data", "value", NULL};
    Py_buffer data;
    unsigned int crc = 0;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*|I", names, &data, &crc)) return NULL;
    if (data.len < RELEASE_BYTES) {
        crc = crc32c_extend(crc, data.buf, (size_t)data.len);
    } else {
        Py_BEGIN_ALLOW_THREADS
        crc = crc32c_extend(crc, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}
