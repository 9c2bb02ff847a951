// The small matrix products inside a tile of attention.
#pragma once
#include <algorithm>

#include "simd.h"

template <class T> constexpr int64_t PANEL = PANEL_VECTORS *LANES<T>;
constexpr int64_t BLOCK_ROWS = 6;

// A(i, k) = a[i * row + k * col]: either operand may be transposed
template <class T> struct Left {
  const T *a;
  int64_t row, col;
};

template <class T, int rows, int vectors>
INLINE void block(Left<T> a, const T *b, int64_t ldb, int64_t depth, T *c, int64_t ldc, bool add) {
  Vec<T> total[rows][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
      total[i][v] = add ? load(c + i * ldc + v * LANES<T>) : Vec<T>{};
  for (int64_t k = 0; k < depth; k++) {
    Vec<T> right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) right[v] = load(b + k * ldb + v * LANES<T>);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
      T left = a.a[i * a.row + k * a.col];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) total[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) store<T>(c + i * ldc + v * LANES<T>, total[i][v]);
}

template <class T, int vectors>
void columns(Left<T> a, const T *b, int64_t ldb, int64_t rows, int64_t depth, T *c, int64_t ldc,
             bool add) {
  int64_t i = 0;
  auto at = [&](int64_t i) { return Left<T>{a.a + i * a.row, a.row, a.col}; };
  for (; i + BLOCK_ROWS <= rows; i += BLOCK_ROWS)
    block<T, BLOCK_ROWS, vectors>(at(i), b, ldb, depth, c + i * ldc, ldc, add);
  if (rows - i >= 4) {
    block<T, 4, vectors>(at(i), b, ldb, depth, c + i * ldc, ldc, add);
    i += 4;
  }
  if (rows - i >= 2) {
    block<T, 2, vectors>(at(i), b, ldb, depth, c + i * ldc, ldc, add);
    i += 2;
  }
  if (rows - i >= 1) block<T, 1, vectors>(at(i), b, ldb, depth, c + i * ldc, ldc, add);
}

// C (rows x width) = or += A (rows x depth) B (depth x width), width whole vectors. `panel` is the
// step from one panel of B to the next: PANEL for a plain matrix, more for a packed one.
template <class T>
void multiply(Left<T> a, const T *b, int64_t ldb, int64_t panel, int64_t rows, int64_t depth,
              int64_t width, T *c, int64_t ldc, bool add) {
  for (int64_t j = 0; j < width; j += PANEL<T>, b += panel, c += PANEL<T>) {
    int64_t vectors = std::min(width - j, PANEL<T>) / LANES<T>;
    if (vectors == 4) columns<T, 4>(a, b, ldb, rows, depth, c, ldc, add);
    if (vectors == 3) columns<T, 3>(a, b, ldb, rows, depth, c, ldc, add);
    if (vectors == 2) columns<T, 2>(a, b, ldb, rows, depth, c, ldc, add);
    if (vectors == 1) columns<T, 1>(a, b, ldb, rows, depth, c, ldc, add);
  }
}

// rows x dim at any row stride -> rows x padded dim, times factor
template <class T>
void copy_padded(const T *from, int64_t stride, int64_t rows, int64_t dim, T factor, T *to) {
  int64_t width = padded<T>(dim);
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t k = 0; k < dim; k++) to[i * width + k] = from[i * stride + k] * factor;
    for (int64_t k = dim; k < width; k++) to[i * width + k] = 0;
  }
}

template <class T>
void copy_back(const T *from, int64_t rows, int64_t dim, T factor, T *to, int64_t stride) {
  int64_t width = padded<T>(dim);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t k = 0; k < dim; k++) to[i * stride + k] = from[i * width + k] * factor;
}

// rows x dim -> its transpose as panels [rows / PANEL][dim][PANEL], padded to whole vectors
template <class T>
void pack_transposed(const T *from, int64_t stride, int64_t rows, int64_t dim, T *to) {
  for (int64_t start = 0; start < rows; start += PANEL<T>, to += PANEL<T> * dim) {
    int64_t here = std::min(PANEL<T>, rows - start);
    const T *source = from + start * stride;
    int64_t j = 0, whole = dim / LANES<T> * LANES<T>;
    for (; j + LANES<T> <= here; j += LANES<T>)
      for (int64_t k = 0; k < whole; k += LANES<T>) {
        Vec<T> block[LANES<T>];
        for (int64_t i = 0; i < LANES<T>; i++) block[i] = load(source + (j + i) * stride + k);
        transpose<T>(block);
        for (int64_t i = 0; i < LANES<T>; i++) store<T>(to + (k + i) * PANEL<T> + j, block[i]);
      }
    for (int64_t k = 0; k < dim; k++)
      for (int64_t i = k < whole ? j : 0; i < padded<T>(here); i++)
        to[k * PANEL<T> + i] = i < here ? source[i * stride + k] : 0;
  }
}
