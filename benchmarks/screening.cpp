// Products of tiles of queries with all keys, alone: in float, and as screening takes them in int8.
#include "screening.h"

constexpr int64_t TILE = 12;  // queries, whose scores of 8,192 keys stay in L2

static float *queries, *keys;
static int64_t n_queries, n_keys, dim, stride;
static std::vector<VecF> packed, memory;  // aligned, as the buffers of Task
static float *scores;

extern "C" void multiply_tiles() {
  for (int64_t i = 0; i < n_queries; i += TILE)
    multiply<float>({queries + i * dim, dim, 1}, (float *)packed.data(), PANEL<float>,
                    PANEL<float> * dim, std::min(TILE, n_queries - i), dim, n_keys, scores, stride,
                    false);
}

#if defined(__AVX512F__)
static Screen screen;
static std::vector<int32_t> columns_of_tile;

// as Task::list_keys, without masks
static int64_t screen_tile(const float *tile, int64_t rows, float gap, bool with_scores) {
  const int64_t panels = n_keys / PANEL<float>;
  int32_t *products = (int32_t *)scores, *columns = columns_of_tile.data();
  int64_t size[TILE], total = 0;
  screen.load_queries(tile, rows);
  screen.multiply(rows, 0, panels, products, stride);
  for (int64_t i = 0; i < rows; i++) {
    const float floor = screen.largest_score(i, products + i * stride, 0, panels) - gap;
    total += size[i] = screen.list(floor, products + i * stride, panels, columns + i * stride);
  }
  for (int64_t i = 0; with_scores && i < rows; i++)
    dots<float>({keys, dim}, columns + i * stride, size[i], dim, tile + i * dim,
                scores + i * stride);
  return total;
}

// returns how many keys are listed
extern "C" int screen_tiles(float gap, int with_scores) {
  int64_t total = 0;
  for (int64_t i = 0; i < n_queries; i += TILE)
    total += screen_tile(queries + i * dim, std::min(TILE, n_queries - i), gap, with_scores);
  return (int)total;
}
#endif

// Takes queries and whole panels of keys; returns whether the machine has int8 products.
extern "C" int load_rows(float *query, int n, float *key, int m, int width) {
  queries = query, keys = key, n_queries = n, n_keys = m, dim = width, stride = m + LANES<float>;
  packed.resize(m * dim / LANES<float>), memory.resize(TILE * stride / LANES<float>);
  scores = (float *)memory.data();
  pack_transposed<float>(keys, dim, m, dim, (float *)packed.data());
#if defined(__AVX512F__)
  screen.begin(m, dim), screen.load_keys(keys, dim, m, m / PANEL<float>);
  columns_of_tile.resize(TILE * stride);
#endif
  return has_int8_products(dim);
}
