"""The C text before every kernel: vector types, loads and stores, and functions without branches.

Written for GCC and Clang: their vector extensions, no header, no fast math, and no contraction of products and sums but
where `fused` stands, so that the width of a machine's vectors changes no bit. `V` is that width in elements; a bool is
a lane of 0 or −1.

Bounds, for all arguments and against double precision (a test holds them): `exp`, `log` and `erf` within 1.5 units in
the last place, `tanh` within 6, `sigmoid` within 2^-22: it is ½(1 + tanh(x / 2)), as the interpreter has it. Square
roots and roundings are exact. The polynomials are our own minimax fits of the relative error.
"""

FUNCTIONS = ("sin", "cos", "atan", "expm1", "log1p")
"""Functions of the C library, lane by lane."""

PRELUDE = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#if defined(__AVX512F__)
#define V 16
#elif defined(__AVX__)
#define V 8
#else
#define V 4
#endif
#define SUMS 64
#define VECTOR(type, name) \
typedef type name __attribute__((vector_size(sizeof(type) * V))); \
typedef type name##_at __attribute__((vector_size(sizeof(type) * V), aligned(sizeof(type)), may_alias))
VECTOR(float, vf);
VECTOR(int, vi);
VECTOR(u32, vu);
VECTOR(u16, vh);
VECTOR(u8, vb);
VECTOR(signed char, vc);
#define F static inline __attribute__((always_inline))
#if defined(__clang__)
#define EACH _Pragma("clang loop unroll(full)")
#else
#define EACH _Pragma("GCC unroll 16")
#endif
/* Less a zero: that changes nothing, so no compiler computes it. */
#define SPLAT(type, x) ((x) - (type){})
#define PICK(m, a, b) ((__typeof__(a))(((vi)(a) & (m)) | ((vi)(b) & ~(m))))
F float bits_f(u32 x) { union { u32 u; float f; } c = {x}; return c.f; }
#if V == 16
static const vi LANES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif V == 8
static const vi LANES = {0, 1, 2, 3, 4, 5, 6, 7};
#else
static const vi LANES = {0, 1, 2, 3};
#endif
F vi below(int n) { return LANES < n; }
/* Lane e is lane e + n of v. */
#if defined(__clang__)
#define TURNED(v, n) ({ __typeof__(v) b; for (int e = 0; e < V; ++e) b[e] = (v)[(e + n) % V]; b; })
#else
#define TURNED(v, n) __builtin_shuffle(v, (LANES + n) & (V - 1))
#endif

/* Loads: whole vectors, the first n elements, and elements a stride apart. */
#define MEMORY(name, type, vector) \
F vector raw_##name(const type* p) { return *(const vector##_at*)p; } \
F vector some_##name(const type* p, int n) { vector v = {}; for (int e = 0; e < n; ++e) v[e] = p[e]; return v; } \
F vector apart_##name(const type* p, i64 s, int n) { \
    vector v = {}; \
    for (int e = 0; e < n; ++e) v[e] = p[e * s]; \
    return v; \
} \
F void put_##name(type* p, vector v) { *(vector##_at*)p = v; } \
F void put_some_##name(type* p, vector v, int n) { for (int e = 0; e < n; ++e) p[e] = v[e]; } \
F void put_apart_##name(type* p, i64 s, vector v, int n) { for (int e = 0; e < n; ++e) p[e * s] = v[e]; }
MEMORY(f32, float, vf)
MEMORY(i32, int, vi)
MEMORY(bf16, u16, vh)
MEMORY(bool, u8, vb)
F vf from_f32(vf v) { return v; }
F vf to_f32(vf v) { return v; }
F vi from_i32(vi v) { return v; }
F vi to_i32(vi v) { return v; }
F vf from_bf16(vh v) { return (vf)(__builtin_convertvector(v, vu) << 16); }
F vu bits_bf16(vf v) {
    const vu u = (vu)v, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16, nan = ((u >> 16) & 0x8000) | 0x7fc0;
    return PICK((vi)(v != v), nan, r);
}
F vh to_bf16(vf v) { return __builtin_convertvector(bits_bf16(v), vh); }
F vf round_bf16(vf v) { return (vf)(bits_bf16(v) << 16); }
F vi from_bool(vb v) { return -__builtin_convertvector(v, vi); }
F vb to_bool(vi v) { return __builtin_convertvector(v & 1, vb); }

/* One element, for numbers of a row: a vector whose lanes are all equal would do the same work V times over, but keeps
   one meaning for both. */
#define ONE(name, type, vector, held) \
F held one_##name(const type* p) { return from_##name(SPLAT(vector, *p)); } \
F void put_one_##name(type* p, held v) { *p = to_##name(v)[0]; }
ONE(f32, float, vf, vf)
ONE(i32, int, vi, vi)
ONE(bf16, u16, vh, vf)
ONE(bool, u8, vb, vi)

/* Keeps the first of the indices that are out of range, by its place, and what it is. */
F void outside(u64* first, i64 place, int index) {
    const u64 found = (u64)place << 32 | (u32)index;
    u64 old = __atomic_load_n(first, __ATOMIC_RELAXED);
    while (found < old && !__atomic_compare_exchange_n(first, &old, found, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

/* a b + c, rounded once where the processor can. */
F vf fused(vf a, vf b, vf c) {
#if defined(__clang__)
    _Pragma("clang fp contract(fast)")
    return a * b + c;
#elif defined(__AVX512F__)
    return __builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4);
#elif defined(__FMA__)
    return __builtin_ia32_vfmaddps256(a, b, c);
#else
    return a * b + c;
#endif
}
/* The larger and the smaller; of a pair with a NaN, or of equal numbers, the second. */
#if defined(__AVX512F__) && !defined(__clang__)
F vf most_f(vf a, vf b) { return __builtin_ia32_maxps512_mask(a, b, a, (u16)-1, 4); }
F vf least_f(vf a, vf b) { return __builtin_ia32_minps512_mask(a, b, a, (u16)-1, 4); }
/* p times 2 to the k, which n is too; the result may be subnormal. */
F vf scaled(vf p, vf k, vi n) { return __builtin_ia32_scalefps512_mask(p, k, p, (u16)-1, 4); }
#else
#if defined(__AVX__) && !defined(__clang__)
F vf most_f(vf a, vf b) { return __builtin_ia32_maxps256(a, b); }
F vf least_f(vf a, vf b) { return __builtin_ia32_minps256(a, b); }
#else
F vf most_f(vf a, vf b) { return PICK(a > b, a, b); }
F vf least_f(vf a, vf b) { return PICK(a < b, a, b); }
#endif
F vf scaled(vf p, vf k, vi n) {
    const vi half = n >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}
#endif

/* Elementwise. */
F vf maximum_f(vf a, vf b) { return PICK((a >= b) | (a != a), a, b); }
F vf minimum_f(vf a, vf b) { return PICK((a <= b) | (a != a), a, b); }
F vi maximum_i(vi a, vi b) { return PICK(a > b, a, b); }
F vi minimum_i(vi a, vi b) { return PICK(a < b, a, b); }
F vf abs_f(vf a) { return (vf)((vi)a & 0x7fffffff); }
F vi abs_i(vi a) { return PICK(a < 0, (vi)(0 - (vu)a), a); }
F vf signed_as(vf a, vf b) { return (vf)(((vi)a & 0x7fffffff) | ((vi)b & (int)0x80000000)); }
F vf sign_f(vf a) { return PICK(a != a, a, __builtin_convertvector((a < 0) - (a > 0), vf)); }
F vi sign_i(vi a) { return (a < 0) - (a > 0); }
F vf mul_or_zero(vf a, vf b) { const vf p = a * b; return PICK((p != p) & (a == 0), SPLAT(vf, 0.0f), p); }
F vi is_finite(vf a) { return ((vi)a & 0x7f800000) != 0x7f800000; }
F vf round_f(vf a) {
    const vf whole = signed_as((abs_f(a) + 8388608.0f) - 8388608.0f, a);
    return PICK(abs_f(a) < 8388608.0f, whole, a);
}
F vf floor_f(vf a) { const vf r = round_f(a); return PICK(r > a, r - 1.0f, r); }
F vf ceil_f(vf a) { const vf r = round_f(a); return PICK(r < a, signed_as(r + 1.0f, a), r); }
F vf sqrt_f(vf a) {
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
    return __builtin_ia32_sqrtps512_mask(a, a, 65535, 4);
#elif defined(__GNUC__) && !defined(__clang__) && defined(__AVX__)
    return __builtin_ia32_sqrtps256(a);
#else
    for (int e = 0; e < V; ++e) a[e] = __builtin_sqrtf(a[e]);
    return a;
#endif
}
F vf exp_f(vf x) {
    /* In this order a NaN goes through. */
    const vf c = least_f(SPLAT(vf, 89.0f), most_f(SPLAT(vf, -104.0f), x));
    const vf t = fused(c, SPLAT(vf, 1.44269504f), SPLAT(vf, 12582912.0f)), k = t - 12582912.0f;
    const vf r = fused(k, SPLAT(vf, 2.12194440e-4f), fused(k, SPLAT(vf, -0.693359375f), c));
    vf p = SPLAT(vf, 0.000199182337f);
    p = fused(p, r, SPLAT(vf, 0.00139463821f));
    p = fused(p, r, SPLAT(vf, 0.00833326485f));
    p = fused(p, r, SPLAT(vf, 0.0416662656f));
    p = fused(p, r, SPLAT(vf, 0.166666672f));
    p = fused(p, r, SPLAT(vf, 0.5f));
    return scaled(fused(p * r, r, r) + 1.0f, k, (vi)t - 0x4b400000);
}
F vf log_f(vf x) {
    const vi small = x < 1.17549435e-38f;
    const vf y = PICK(small, x * 8388608.0f, x);
    const vi shifted = (vi)y - 0x3f3504f3, n = (shifted >> 23) + (small & -23);
    const vf k = __builtin_convertvector(n, vf);
    const vf f = (vf)((vi)y - (shifted & (int)0xff800000)) - 1.0f;
    vf p = SPLAT(vf, 0.0691617951f);
    p = fused(p, f, SPLAT(vf, -0.117915176f));
    p = fused(p, f, SPLAT(vf, 0.118735448f));
    p = fused(p, f, SPLAT(vf, -0.123841211f));
    p = fused(p, f, SPLAT(vf, 0.142185554f));
    p = fused(p, f, SPLAT(vf, -0.166692585f));
    p = fused(p, f, SPLAT(vf, 0.200022325f));
    p = fused(p, f, SPLAT(vf, -0.249999866f));
    p = fused(p, f, SPLAT(vf, 0.333333105f));
    const vf q = f * f;
    p = fused(p * f, q, fused(k, SPLAT(vf, -2.12194440e-4f), -0.5f * q));
    p = fused(k, SPLAT(vf, 0.693359375f), p + f);
    p = PICK(x == 0, SPLAT(vf, -bits_f(0x7f800000u)), p);
    p = PICK(x == bits_f(0x7f800000u), x, p);
    return PICK(x >= 0, p, PICK(x != x, x, SPLAT(vf, bits_f(0x7fc00000u))));
}
F vf tanh_f(vf x) {
    const vf a = abs_f(x), z = x * x;
    vf p = SPLAT(vf, 1.33189735e-08f), q = SPLAT(vf, 7.76197851e-07f);
    p = fused(p, z, SPLAT(vf, 2.05834094e-05f)); q = fused(q, z, SPLAT(vf, 0.000328308553f));
    p = fused(p, z, SPLAT(vf, 0.0034940301f)); q = fused(q, z, SPLAT(vf, 0.0258710571f));
    p = fused(p, z, SPLAT(vf, 0.133797139f)); q = fused(q, z, SPLAT(vf, 0.467130303f));
    p = fused(p, z, SPLAT(vf, 1.0f)); q = fused(q, z, SPLAT(vf, 1.0f));
    const vf y = x * p / q;
    /* Above 9.02 it is one to the last bit. */
    return PICK((a > 9.02f) | (abs_f(y) > 1.0f), signed_as(SPLAT(vf, 1.0f), x), y);
}
F vf sigmoid_f(vf x) { return 0.5f * (1.0f + tanh_f(0.5f * x)); }
F vf erf_f(vf x) {
    const vf a = abs_f(x), z = x * x, c = PICK(a > 4.0f, SPLAT(vf, 4.0f), a);
    vf p = SPLAT(vf, 8.34522478e-05f);
    p = fused(p, z, SPLAT(vf, -0.000813743740f));
    p = fused(p, z, SPLAT(vf, 0.00520063424f));
    p = fused(p, z, SPLAT(vf, -0.0268592704f));
    p = fused(p, z, SPLAT(vf, 0.112836942f));
    p = fused(p, z, SPLAT(vf, -0.376126349f));
    p = fused(p, z, SPLAT(vf, 0.128379166f));
    vf q = SPLAT(vf, 1.04331143e-05f);
    q = fused(q, c, SPLAT(vf, -0.000314858102f));
    q = fused(q, c, SPLAT(vf, 0.00361034204f));
    q = fused(q, c, SPLAT(vf, -0.0236945655f));
    q = fused(q, c, SPLAT(vf, 0.106159046f));
    q = fused(q, c, SPLAT(vf, 0.635198057f));
    q = fused(q, c, SPLAT(vf, 1.12863708f));
    return PICK(a < 0.925f, fused(p, x, x), signed_as(PICK(x != x, x, 1.0f - exp_f(-(q * c))), x));
}
#define LANES(name) float name##f(float); \
F vf name##_f(vf a) { for (int e = 0; e < V; ++e) a[e] = name##f(a[e]); return a; }
LANES(sin) LANES(cos) LANES(atan) LANES(expm1) LANES(log1p)
float powf(float, float);
F vf pow_f(vf a, vf b) { for (int e = 0; e < V; ++e) a[e] = powf(a[e], b[e]); return a; }

/* Folds. Element number c of a walk goes to partial c mod 64; these are folded by halves, whatever V is. */
#define HALVES(held, name, combine) \
F held fold_##name(const held* acc) { \
    held s[SUMS / V]; \
    for (int i = 0; i < SUMS / V; ++i) s[i] = acc[i]; \
    for (int n = SUMS / V / 2; n; n /= 2) \
        for (int i = 0; i < n; ++i) { const held a = s[i], b = s[i + n]; s[i] = combine; } \
    held a = s[0], b; \
    if (V > 8) { b = TURNED(a, 8); a = combine; } \
    if (V > 4) { b = TURNED(a, 4); a = combine; } \
    b = TURNED(a, 2); a = combine; \
    b = TURNED(a, 1); a = combine; \
    return SPLAT(held, a[0]); \
}
HALVES(vf, sum_f, a + b) HALVES(vf, max_f, maximum_f(a, b)) HALVES(vf, min_f, minimum_f(a, b)) HALVES(vf, prod_f, a * b)
HALVES(vi, sum_i, (vi)((vu)a + (vu)b)) HALVES(vi, max_i, maximum_i(a, b)) HALVES(vi, min_i, minimum_i(a, b))
HALVES(vi, prod_i, (vi)((vu)a * (vu)b)) HALVES(vi, any_i, a | b) HALVES(vi, all_i, a & b)
"""
