/*
 * AVX-512, AVX2, NEON and plain C versions of the vectorised loops.
 * Owns the choice at run time; refuses reductions in floating point.
 */
#include "stats/ffn_kernel.h"

#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#define HAVE_X86 1
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define HAVE_NEON 1
#include <arm_neon.h>
#endif

#define NONFINITE_BITS 0x7f800000

/* Byte counters are emptied before 256 vectors. */
enum { MAX_BYTE_ROUNDS = 255 };

/* Bytes to fetch ahead: a row comes fresh from a copy and a block's masses are cold by its next
 * turn. */
enum { AHEAD = 2048 };

static inline void fetch_ahead(const void *p) {
    __builtin_prefetch((const void *)((uintptr_t)p + AHEAD));
}

/* The loops keep min(bits - 1), in which a zero wraps to the largest value and drops out. */
typedef struct extremes {
    uint32_t min_less_1, max;
} extremes;

/* Finishes a row from value i on, for every version. */
static inline ts_row scan_from(extremes e, double *mass, uint16_t *bin, const float *value,
                               size_t i, uint32_t n) {
    for (; i < n; i++) {
        uint32_t bits = ts_abs_bits(value + i);
        uint32_t kept = bits < NONFINITE_BITS ? bits : 0;
        float magnitude;

        memcpy(&magnitude, &kept, sizeof magnitude);
        mass[i] += (double)magnitude;
        bin[i] = (uint16_t)(bits >> TS_HIST_SHIFT);
        e.min_less_1 = bits - 1 < e.min_less_1 ? bits - 1 : e.min_less_1;
        e.max = bits > e.max ? bits : e.max;
    }
    return (ts_row){value, bin, n, e.min_less_1 == UINT32_MAX ? UINT32_MAX : e.min_less_1 + 1,
                    e.max};
}

/* Classifies the last values of a row, from a multiple of 64 on. */
static inline void classify_from(const uint16_t *bin, size_t i, uint32_t n,
                                 const int16_t cut[TS_FFN_N_SETS], uint8_t *level,
                                 uint64_t *undecided) {
    for (; i < n; i++) {
        unsigned above = 0, equal = 0;

        for (int j = 0; j < TS_FFN_N_SETS; j++) {
            above += (unsigned)(cut[j] > bin[i]);
            equal |= (unsigned)(cut[j] == bin[i]);
        }
        level[i] = (uint8_t)above;
        undecided[i / 64] = (i % 64 ? undecided[i / 64] : 0) | (uint64_t)equal << i % 64;
    }
}

static inline void count_overlap_from(const uint8_t *a, const uint8_t *b, size_t i, uint32_t n,
                                      uint64_t hits[TS_FFN_N_SETS]) {
    uint64_t at[TS_FFN_N_SETS + 1] = {0}, sum = 0;

    for (; i < n; i++)
        at[a[i] > b[i] ? a[i] : b[i]]++;
    for (int j = 0; j < TS_FFN_N_SETS; j++)
        hits[j] += sum += at[j];
}

static ts_row scan_c(double *mass, uint16_t *bin, const float *value, uint32_t n) {
    return scan_from((extremes){UINT32_MAX, 0}, mass, bin, value, 0, n);
}

static void classify_c(const uint16_t *bin, uint32_t n, const int16_t cut[TS_FFN_N_SETS],
                       uint8_t *level, uint64_t *undecided) {
    enum { IS_CUT = 0x80 };
    uint8_t level_of[TS_HIST_N_CELLS] = {0};
    size_t i = 0;

    for (int j = 0; j < TS_FFN_N_SETS && cut[j] >= 0;
         j++) /* the later, lower cut overwrites the bins below it */
        memset(level_of, j + 1, (size_t)cut[j]);
    for (int j = 0; j < TS_FFN_N_SETS && cut[j] >= 0; j++)
        level_of[cut[j]] |= IS_CUT;
    for (; i + 64 <= n; i += 64) {
        uint64_t bits = 0;

        for (unsigned k = 0; k < 64; k++) {
            unsigned found = level_of[bin[i + k]];

            level[i + k] = (uint8_t)(found & (IS_CUT - 1));
            bits |= (uint64_t)(found / IS_CUT) << k;
        }
        undecided[i / 64] = bits;
    }
    classify_from(bin, i, n, cut, level, undecided);
}

static void count_overlap_c(const uint8_t *a, const uint8_t *b, uint32_t n,
                            uint64_t hits[TS_FFN_N_SETS]) {
    count_overlap_from(a, b, 0, n, hits);
}

static const ts_ffn_kernel kernel_c = {"c", scan_c, classify_c, count_overlap_c};

#ifdef HAVE_X86

#define TARGET_AVX512 __attribute__((target("avx512f")))
#define TARGET_AVX2 __attribute__((target("avx2")))

TARGET_AVX512 static ts_row scan_avx512(double *mass, uint16_t *bin, const float *value,
                                        uint32_t n) {
    const __m512i abs_mask = _mm512_set1_epi32(0x7fffffff),
                  limit = _mm512_set1_epi32(NONFINITE_BITS);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i low = _mm512_set1_epi32(-1), high = _mm512_setzero_si512();
    extremes e;
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m512i bits = _mm512_and_si512(_mm512_loadu_si512(value + i), abs_mask);
        __m512i kept = _mm512_maskz_mov_epi32(_mm512_cmplt_epu32_mask(bits, limit), bits);
        __m512d first = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_castsi512_si256(kept)));
        __m512d second = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_extracti64x4_epi64(kept, 1)));
        __m256i bins = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, TS_HIST_SHIFT));

        _mm512_storeu_pd(mass + i, _mm512_add_pd(_mm512_loadu_pd(mass + i), first));
        _mm512_storeu_pd(mass + i + 8, _mm512_add_pd(_mm512_loadu_pd(mass + i + 8), second));
        _mm256_storeu_si256((__m256i *)(void *)(bin + i), bins);
        fetch_ahead(value + i);
        fetch_ahead(mass + i);
        low = _mm512_min_epu32(low, _mm512_sub_epi32(bits, one));
        high = _mm512_max_epu32(high, bits);
    }
    e = (extremes){_mm512_reduce_min_epu32(low), _mm512_reduce_max_epu32(high)};
    return scan_from(e, mass, bin, value, i, n);
}

TARGET_AVX2 static extremes extremes_avx2(__m256i low, __m256i high) {
    uint32_t lane[2][8];
    extremes e = {UINT32_MAX, 0};

    memcpy(lane[0], &low, sizeof low);
    memcpy(lane[1], &high, sizeof high);
    for (int l = 0; l < 8; l++) {
        e.min_less_1 = lane[0][l] < e.min_less_1 ? lane[0][l] : e.min_less_1;
        e.max = lane[1][l] > e.max ? lane[1][l] : e.max;
    }
    return e;
}

TARGET_AVX2 static ts_row scan_avx2(double *mass, uint16_t *bin, const float *value, uint32_t n) {
    const __m256i abs_mask = _mm256_set1_epi32(0x7fffffff),
                  limit = _mm256_set1_epi32(NONFINITE_BITS);
    const __m256i one = _mm256_set1_epi32(1);
    __m256i low = _mm256_set1_epi32(-1), high = _mm256_setzero_si256();
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i bits = _mm256_and_si256(
            _mm256_loadu_si256((const __m256i *)(const void *)(value + i)), abs_mask);
        __m256i kept = _mm256_and_si256(bits, _mm256_cmpgt_epi32(limit, bits));
        __m256d first = _mm256_cvtps_pd(_mm_castsi128_ps(_mm256_castsi256_si128(kept)));
        __m256d second = _mm256_cvtps_pd(_mm_castsi128_ps(_mm256_extracti128_si256(kept, 1)));
        __m256i wide = _mm256_srli_epi32(bits, TS_HIST_SHIFT);
        __m128i bins =
            _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));

        _mm256_storeu_pd(mass + i, _mm256_add_pd(_mm256_loadu_pd(mass + i), first));
        _mm256_storeu_pd(mass + i + 4, _mm256_add_pd(_mm256_loadu_pd(mass + i + 4), second));
        _mm_storeu_si128((__m128i *)(void *)(bin + i), bins);
        fetch_ahead(value + i);
        fetch_ahead(mass + i);
        low = _mm256_min_epu32(low, _mm256_sub_epi32(bits, one));
        high = _mm256_max_epu32(high, bits);
    }
    return scan_from(extremes_avx2(low, high), mass, bin, value, i, n);
}

/* 32 values; returns their bits of undecided. */
TARGET_AVX2 static inline uint32_t classify_32(const uint16_t *bin,
                                               const __m256i cut[TS_FFN_N_SETS], uint8_t *level) {
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)bin);
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(bin + 16));
    __m256i above_a = _mm256_setzero_si256(), above_b = above_a, equal_a = above_a,
            equal_b = above_a, packed;

    TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) {
        above_a = _mm256_sub_epi16(above_a, _mm256_cmpgt_epi16(cut[j], a));
        above_b = _mm256_sub_epi16(above_b, _mm256_cmpgt_epi16(cut[j], b));
        equal_a = _mm256_or_si256(equal_a, _mm256_cmpeq_epi16(cut[j], a));
        equal_b = _mm256_or_si256(equal_b, _mm256_cmpeq_epi16(cut[j], b));
    }
    /* packs works in 128-bit halves: put the quarters back in order. */
    packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(above_a, above_b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)level, packed);
    return (uint32_t)_mm256_movemask_epi8(
        _mm256_permute4x64_epi64(_mm256_packs_epi16(equal_a, equal_b), 0xd8));
}

TARGET_AVX2 static void classify_avx2(const uint16_t *bin, uint32_t n,
                                      const int16_t cut[TS_FFN_N_SETS], uint8_t *level,
                                      uint64_t *undecided) {
    __m256i cuts[TS_FFN_N_SETS];
    size_t i = 0;

    TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) cuts[j] = _mm256_set1_epi16(cut[j]);
    for (; i + 64 <= n; i += 64) {
        uint64_t low = classify_32(bin + i, cuts, level + i);

        undecided[i / 64] = low | (uint64_t)classify_32(bin + i + 32, cuts, level + i + 32) << 32;
    }
    classify_from(bin, i, n, cut, level, undecided);
}

TARGET_AVX2 static uint64_t sum_bytes_avx2(__m256i bytes) {
    uint64_t lane[4];
    __m256i sums = _mm256_sad_epu8(bytes, _mm256_setzero_si256());

    memcpy(lane, &sums, sizeof lane);
    return lane[0] + lane[1] + lane[2] + lane[3];
}

TARGET_AVX2 static void count_overlap_avx2(const uint8_t *a, const uint8_t *b, uint32_t n,
                                           uint64_t hits[TS_FFN_N_SETS]) {
    size_t i = 0;

    while (i + 32 <= n) {
        __m256i beyond[TS_FFN_N_SETS];
        size_t start = i;

        TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) beyond[j] = _mm256_setzero_si256();
        for (int round = 0; round < MAX_BYTE_ROUNDS && i + 32 <= n; round++, i += 32) {
            __m256i level =
                _mm256_max_epu8(_mm256_loadu_si256((const __m256i *)(const void *)(a + i)),
                                _mm256_loadu_si256((const __m256i *)(const void *)(b + i)));

            TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) beyond[j] =
                _mm256_sub_epi8(beyond[j], _mm256_cmpgt_epi8(level, _mm256_set1_epi8((char)j)));
        }
        TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) hits[j] +=
            i - start - sum_bytes_avx2(beyond[j]);
    }
    count_overlap_from(a, b, i, n, hits);
}

static const ts_ffn_kernel kernel_avx512 = {"avx512", scan_avx512, classify_avx2,
                                            count_overlap_avx2};
static const ts_ffn_kernel kernel_avx2 = {"avx2", scan_avx2, classify_avx2, count_overlap_avx2};

const ts_ffn_kernel *const *ts_ffn_kernels(size_t *n) {
    static const ts_ffn_kernel *const all[] = {&kernel_avx512, &kernel_avx2, &kernel_c};
    size_t first = 2;

    if (__builtin_cpu_supports("avx2")) {
        first = 1;
        if (__builtin_cpu_supports("avx512f"))
            first = 0;
    }
    *n = sizeof all / sizeof *all - first;
    return all + first;
}

#elif defined(HAVE_NEON)

static ts_row scan_neon(double *mass, uint16_t *bin, const float *value, uint32_t n) {
    const uint32x4_t abs_mask = vdupq_n_u32(0x7fffffff), limit = vdupq_n_u32(NONFINITE_BITS),
                     one = vdupq_n_u32(1);
    uint32x4_t low = vdupq_n_u32(UINT32_MAX), high = vdupq_n_u32(0);
    extremes e;
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(vld1q_f32(value + i)), abs_mask);
        float32x4_t kept = vreinterpretq_f32_u32(vandq_u32(bits, vcltq_u32(bits, limit)));

        vst1q_f64(mass + i, vaddq_f64(vld1q_f64(mass + i), vcvt_f64_f32(vget_low_f32(kept))));
        vst1q_f64(mass + i + 2, vaddq_f64(vld1q_f64(mass + i + 2), vcvt_high_f64_f32(kept)));
        vst1_u16(bin + i, vmovn_u32(vshrq_n_u32(bits, TS_HIST_SHIFT)));
        fetch_ahead(value + i);
        fetch_ahead(mass + i);
        low = vminq_u32(low, vsubq_u32(bits, one));
        high = vmaxq_u32(high, bits);
    }
    e = (extremes){vminvq_u32(low), vmaxvq_u32(high)};
    return scan_from(e, mass, bin, value, i, n);
}

/* 8 values; returns their bits of undecided. */
static inline uint64_t classify_8(const uint16_t *bin, const int16x8_t cut[TS_FFN_N_SETS],
                                  uint8_t *level) {
    static const uint8_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    int16x8_t value = vreinterpretq_s16_u16(vld1q_u16(bin));
    uint16x8_t above = vdupq_n_u16(0), equal = above;

    for (int j = 0; j < TS_FFN_N_SETS; j++) {
        above = vsubq_u16(above, vcgtq_s16(cut[j], value));
        equal = vorrq_u16(equal, vceqq_s16(cut[j], value));
    }
    vst1_u8(level, vmovn_u16(above));
    return vaddv_u8(vand_u8(vmovn_u16(equal), vld1_u8(bit)));
}

static void classify_neon(const uint16_t *bin, uint32_t n, const int16_t cut[TS_FFN_N_SETS],
                          uint8_t *level, uint64_t *undecided) {
    int16x8_t cuts[TS_FFN_N_SETS];
    size_t i = 0;

    for (int j = 0; j < TS_FFN_N_SETS; j++)
        cuts[j] = vdupq_n_s16(cut[j]);
    for (; i + 64 <= n; i += 64) {
        undecided[i / 64] = 0;
        for (unsigned k = 0; k < 64; k += 8)
            undecided[i / 64] |= classify_8(bin + i + k, cuts, level + i + k) << k;
    }
    classify_from(bin, i, n, cut, level, undecided);
}

static void count_overlap_neon(const uint8_t *a, const uint8_t *b, uint32_t n,
                               uint64_t hits[TS_FFN_N_SETS]) {
    size_t i = 0;

    while (i + 16 <= n) {
        uint8x16_t count[TS_FFN_N_SETS];

        TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) count[j] = vdupq_n_u8(0);
        for (int round = 0; round < MAX_BYTE_ROUNDS && i + 16 <= n; round++, i += 16) {
            uint8x16_t level = vmaxq_u8(vld1q_u8(a + i), vld1q_u8(b + i));

            TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) count[j] =
                vsubq_u8(count[j], vcleq_u8(level, vdupq_n_u8((uint8_t)j)));
        }
        TS_UNROLL for (int j = 0; j < TS_FFN_N_SETS; j++) hits[j] += vaddlvq_u8(count[j]);
    }
    count_overlap_from(a, b, i, n, hits);
}

static const ts_ffn_kernel kernel_neon = {"neon", scan_neon, classify_neon, count_overlap_neon};

const ts_ffn_kernel *const *ts_ffn_kernels(size_t *n) {
    static const ts_ffn_kernel *const all[] = {&kernel_neon, &kernel_c};

    *n = sizeof all / sizeof *all;
    return all;
}

#else

const ts_ffn_kernel *const *ts_ffn_kernels(size_t *n) {
    static const ts_ffn_kernel *const all[] = {&kernel_c};

    *n = 1;
    return all;
}

#endif

const ts_ffn_kernel *ts_ffn_kernel_find(const char *name) {
    size_t n;
    const ts_ffn_kernel *const *all = ts_ffn_kernels(&n);

    for (size_t i = 0; i < n; i++) {
        if (name == NULL || strcmp(all[i]->name, name) == 0)
            return all[i];
    }
    return NULL;
}
