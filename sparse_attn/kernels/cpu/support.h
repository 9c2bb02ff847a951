// Rows that are mostly zero: the scores that can have a share, and products over only these.
#pragma once
#include "shares.h"

// stores the scores x of at least `bound`, and their columns, which start at `first`, in order
#if defined(__AVX512F__)
INLINE int64_t compress_vector(VecF x, int32_t first, float bound, int32_t *columns, float *scores) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __mmask16 large = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GE_OQ);
  _mm512_storeu_ps(scores, _mm512_maskz_compress_ps(large, (__m512)x));
  __m512i column = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
  _mm512_storeu_si512(columns, _mm512_maskz_compress_epi32(large, column));
  return __builtin_popcount(large);
}
INLINE int64_t compress_vector(VecD x, int32_t first, double bound, int32_t *columns, double *scores) {
  const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  __mmask8 large = _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(bound), _CMP_GE_OQ);
  _mm512_storeu_pd(scores, _mm512_maskz_compress_pd(large, (__m512d)x));
  __m256i column = _mm256_add_epi32(lanes, _mm256_set1_epi32(first));
  _mm256_storeu_si256((__m256i *)columns, _mm256_maskz_compress_epi32(large, column));
  return __builtin_popcount(large);
}
#else
template <class V, class T>
INLINE int64_t compress_vector(V x, int32_t first, T bound, int32_t *columns, T *scores) {
  int64_t found = 0;
  for (int32_t i = 0; i < LANES<T>; i++) {
    columns[found] = first + i, scores[found] = x[i];
    found += x[i] >= bound;
  }
  return found;
}
#endif

// the same for x[0, n); writes whole vectors
template <class T> int64_t compress(const T *x, int64_t n, T bound, int32_t *columns, T *scores) {
  int64_t found = 0;
  for (int64_t j = 0; j < n; j += LANES<T>) {
    Vec<T> here = load(x + j);
#if !defined(__AVX512F__)
    if (!lanes(here >= bound)) continue;
#endif
    found += compress_vector(here, (int32_t)j, bound, columns + found, scores + found);
  }
  return found;
}

// a matrix with a row for each entry
template <class T> struct Rows {
  T *data;
  int64_t stride;
};

// body(v, start) with the `left` >= 1 vectors from column `start` on, at most MOST
template <int MOST, class Body> INLINE void next_vectors(int64_t left, int64_t start, Body body) {
  if constexpr (MOST > 1)
    if (left < MOST) return next_vectors<MOST - 1>(left, start, body);
  body(std::integral_constant<int, MOST>{}, start);
}

// body(v, start): `v` vectors from column `start` on, at most MOST at a time
template <class T, int MOST = 4, class Body> INLINE void by_vectors(int64_t width, Body body) {
  for (int64_t start = 0; start < width; start += MOST * LANES<T>)
    next_vectors<MOST>((width - start) / LANES<T>, start, body);
}

// out = sum_k weights[k] rows[columns[k]]
template <class T>
void gather(Rows<T> rows, const int32_t *columns, const T *weights, int64_t n, int64_t width,
            T *out) {
  by_vectors<T>(width, [&](auto vectors, int64_t start) {
    Vec<T> total[2][vectors] = {};
    const T *from = rows.data + start;
    int64_t k = 0;
    for (; k + 2 <= n; k += 2)
      for (int i = 0; i < 2; i++)
        for (int v = 0; v < vectors; v++)
          total[i][v] += weights[k + i] * load(from + columns[k + i] * rows.stride + v * LANES<T>);
    if (k < n)
      for (int v = 0; v < vectors; v++)
        total[0][v] += weights[k] * load(from + columns[k] * rows.stride + v * LANES<T>);
    for (int v = 0; v < vectors; v++) store<T>(out + start + v * LANES<T>, total[0][v] + total[1][v]);
  });
}

// products[k] = row . rows[columns[k]], or row . rows[k] without columns
template <class T>
void dots(Rows<T> rows, const int32_t *columns, int64_t n, int64_t width, const T *row,
          T *products) {
  // 8 vectors of AVX2 are a row of 64 floats, which is read once: many keys come from memory
  by_vectors<T, 8>(width, [&](auto vectors, int64_t start) {
    Vec<T> with[vectors];
    for (int v = 0; v < vectors; v++) with[v] = load(row + start + v * LANES<T>);
    for (int64_t k = 0; k < n; k++) {
      const T *from = rows.data + (columns ? columns[k] : k) * rows.stride + start;
      Vec<T> total = load(from) * with[0];
      for (int v = 1; v < vectors; v++) total += load(from + v * LANES<T>) * with[v];
      products[k] = (start ? products[k] : T(0)) + sum<T>(total);
    }
  });
}

// rows[columns[k]] += weights[k] row
template <class T>
void scatter(Rows<T> rows, const int32_t *columns, const T *weights, int64_t n, int64_t width,
             const T *row) {
  by_vectors<T>(width, [&](auto vectors, int64_t start) {
    Vec<T> with[vectors];
    for (int v = 0; v < vectors; v++) with[v] = load(row + start + v * LANES<T>);
    for (int64_t k = 0; k < n; k++) {
      T *to = rows.data + columns[k] * rows.stride + start;
      for (int v = 0; v < vectors; v++)
        store<T>(to + v * LANES<T>, load(to + v * LANES<T>) + weights[k] * with[v]);
    }
  });
}
