// Vectors as wide as the machine's, and the functions of them that the row maps need.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define PANEL_VECTORS 4
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define PANEL_VECTORS 2
#else
#define VECTOR_BYTES 16
#define PANEL_VECTORS 2
#endif
#define INLINE inline __attribute__((always_inline))
#if defined(__AVX2__)
#include <immintrin.h>
#endif

typedef float VecF __attribute__((vector_size(VECTOR_BYTES)));
typedef double VecD __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t IntF __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t IntD __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t BitsF __attribute__((vector_size(VECTOR_BYTES)));

template <class T> struct Simd;
template <> struct Simd<float> {
  using Vec = VecF;
  using Int = IntF;
  using Mask = decltype(VecF{} < VecF{});
};
template <> struct Simd<double> {
  using Vec = VecD;
  using Int = IntD;
  using Mask = decltype(VecD{} < VecD{});
};
template <class T> using Vec = typename Simd<T>::Vec;
template <class T> using Int = typename Simd<T>::Int;
template <class T> constexpr int64_t LANES = VECTOR_BYTES / sizeof(T);
template <class T> constexpr T INF = std::numeric_limits<T>::infinity();

template <class T> INLINE int64_t padded(int64_t n) {
  return (n + LANES<T> - 1) / LANES<T> * LANES<T>;
}

template <class T> INLINE Vec<T> load(const T *p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T> INLINE void store(T *p, Vec<T> v) { std::memcpy(p, &v, sizeof v); }
template <class T> INLINE Vec<T> all(T value) { return value - Vec<T>{}; }

template <class E, int bytes> struct Sized {
  typedef E Vec __attribute__((vector_size(bytes)));
};

// halves on halves, then the last 16 bytes lane by lane
template <class E, int bytes, class Join>
INLINE E reduce(typename Sized<E, bytes>::Vec v, Join join) {
  if constexpr (bytes > 16) {
    typename Sized<E, bytes / 2>::Vec halves[2];
    std::memcpy(halves, &v, sizeof v);
    return reduce<E, bytes / 2>(join(halves[0], halves[1]), join);
  } else {
    E result = v[0];
    for (unsigned i = 1; i < 16 / sizeof(E); i++) result = join(result, v[i]);
    return result;
  }
}
template <class T> INLINE T sum(Vec<T> v) {
  return reduce<T, VECTOR_BYTES>(v, [](auto a, auto b) { return a + b; });
}
template <class T> INLINE T largest(Vec<T> v) {
  return reduce<T, VECTOR_BYTES>(v, [](auto a, auto b) { return a > b ? a : b; });
}
template <class T> INLINE int64_t count(Int<T> v) {
  using E = std::remove_reference_t<decltype(v[0])>;
  return reduce<E, VECTOR_BYTES>(v, [](auto a, auto b) { return a + b; });
}

// the lanes where a comparison holds, as bits
#if defined(__AVX512F__)
INLINE uint32_t lanes(IntF holds) { return _mm512_movepi32_mask((__m512i)holds); }
INLINE uint32_t lanes(IntD holds) { return _mm512_movepi64_mask((__m512i)holds); }
#elif defined(__AVX2__)
INLINE uint32_t lanes(IntF holds) { return (uint32_t)_mm256_movemask_ps((__m256)holds); }
INLINE uint32_t lanes(IntD holds) { return (uint32_t)_mm256_movemask_pd((__m256d)holds); }
#else
template <class I> INLINE uint32_t lanes(I holds) {
  uint32_t bits = 0;
  for (unsigned i = 0; i < sizeof holds / sizeof holds[0]; i++) bits |= (holds[i] & 1u) << i;
  return bits;
}
#endif

#if defined(__clang__)
template <class T> INLINE void transpose(Vec<T> *rows) {
  T block[LANES<T>][LANES<T>];
  std::memcpy(block, rows, sizeof block);
  for (int64_t i = 0; i < LANES<T>; i++)
    for (int64_t j = 0; j < LANES<T>; j++) ((T *)(rows + i))[j] = block[j][i];
}
#else
// LANES x LANES entries: at each step the off-diagonal quarters of every square change places
template <class T> INLINE void transpose(Vec<T> *rows) {
#pragma GCC unroll 8
  for (int s = 1; s < LANES<T>; s *= 2) {
    Int<T> upper, lower;
    for (int j = 0; j < LANES<T>; j++) {
      upper[j] = j & s ? j - s + LANES<T> : j;
      lower[j] = j & s ? j + LANES<T> : j + s;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES<T>; i++)
      if (!(i & s)) {
        Vec<T> a = rows[i], b = rows[i + s];
        rows[i] = __builtin_shuffle(a, b, upper);
        rows[i + s] = __builtin_shuffle(a, b, lower);
      }
  }
}
#endif

// the larger one, `b` if either is NaN
#if defined(__AVX512F__)
INLINE VecF larger(VecF a, VecF b) { return (VecF)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE VecD larger(VecD a, VecD b) { return (VecD)_mm512_max_pd((__m512d)a, (__m512d)b); }
#elif defined(__AVX2__)
INLINE VecF larger(VecF a, VecF b) { return (VecF)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE VecD larger(VecD a, VecD b) { return (VecD)_mm256_max_pd((__m256d)a, (__m256d)b); }
#else
template <class V> INLINE V larger(V a, V b) { return a > b ? a : b; }
#endif

// NaN in `a` stays
template <class V> INLINE V at_most(V a, V bound) { return a > bound ? bound : a; }
template <class V> INLINE V at_least(V a, V bound) { return a < bound ? bound : a; }
template <class V> INLINE V magnitude(V a) { return a < 0 ? -a : a; }

struct Power {  // e^x = 2^n (less_one + 1), |less_one| < 1/2
  VecF less_one;
  BitsF n;  // as an exponent
};

// for -87 <= x <= 88
INLINE Power power(VecF x) {
  const VecF shifter = all(12582912.0f);  // 1.5 * 2^23: the sum ends at the integers
  VecF shifted = x * 1.44269504f + shifter;
  VecF n = shifted - shifter;
  VecF r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  VecF poly = r * 1.9875691500e-4f + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  return {poly * (r * r) + r, (BitsF)shifted << 23};
}

// e^x to 2 ulp for x <= 88; 0 below -87
INLINE VecF exp(VecF x) {
  Power e = power(at_most(x, all(88.0f)));
  return x < -87.0f ? VecF{} : (VecF)((BitsF)(e.less_one + 1.0f) + e.n);
}

// e^x - 1 to 4 ulp for x <= 87
INLINE VecF expm1(VecF x) {
  Power e = power(at_most(at_least(x, all(-87.0f)), all(87.0f)));
  VecF scale = (VecF)((BitsF)all(1.0f) + e.n);
  return e.less_one * scale + (scale - 1.0f);
}

// log x for x > 0; -inf at 0
INLINE VecF log(VecF x) {
  BitsF bits = (BitsF)x;
  // the mantissa in [sqrt(1/2), sqrt(2))
  IntF exponent = (IntF)(bits - 0x3f3504f3) >> 23;
  VecF m = (VecF)(bits - ((BitsF)exponent << 23)) - 1.0f;
  VecF e = __builtin_convertvector(exponent, VecF);
  VecF square = m * m;
  VecF poly = m * 7.0376836292e-2f - 1.1514610310e-1f;
  poly = poly * m + 1.1676998740e-1f;
  poly = poly * m - 1.2420140846e-1f;
  poly = poly * m + 1.4249322787e-1f;
  poly = poly * m - 1.6668057665e-1f;
  poly = poly * m + 2.0000714765e-1f;
  poly = poly * m - 2.4999993993e-1f;
  poly = poly * m + 3.3333331174e-1f;
  poly = poly * m * square - e * 2.12194440e-4f - square * 0.5f;
  return x > 0 ? m + poly + e * 0.693359375f : all(-INF<float>);
}

INLINE VecF tanh(VecF x) {
  VecF square = x * x;
  VecF poly = square * -5.70498872745e-3f + 2.06390887954e-2f;
  poly = poly * square - 5.37397155531e-2f;
  poly = poly * square + 1.33314422036e-1f;
  poly = poly * square - 3.33332819422e-1f;
  VecF size = magnitude(x);
  VecF far = 1.0f - 2.0f / (exp(at_most(size * 2.0f, all(40.0f))) + 1.0f);
  return size < 0.625f ? x + x * square * poly : x < 0 ? -far : far;
}

template <double (*f)(double)> INLINE VecD each(VecD x) {
  for (int64_t i = 0; i < LANES<double>; i++) x[i] = f(x[i]);
  return x;
}
INLINE VecD exp(VecD x) { return each<std::exp>(x); }
INLINE VecD expm1(VecD x) { return each<std::expm1>(x); }
INLINE VecD log(VecD x) { return each<std::log>(x); }
INLINE VecD tanh(VecD x) { return each<std::tanh>(x); }

// log(1 + x) for x >= -1, from log(u), u = 1 + x rounded
template <class V> INLINE V log1p(V x) {
  V u = x + 1;
  V corrected = log(u) + (x - (u - 1)) / u;
  return u > 0 ? corrected : log(u);
}
