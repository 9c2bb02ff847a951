// Attention on the CPU: tiles of query rows whose scores stay in cache, forward and backward.
//
// One task is one key head (or a segment of its queries) and belongs to one thread, which adds up
// its gradients in a fixed order: results do not depend on the schedule, and nothing is atomic.
#include <atomic>
#include <thread>
#include <vector>

#include "gemm.h"
#include "maps.h"

// between the buffers of a task, for AddressSanitizer to see when one is left
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON ASAN_POISON_MEMORY_REGION
#define UNPOISON ASAN_UNPOISON_MEMORY_REGION
template <class T> constexpr int64_t GAP = 2 * LANES<T>;
#else
#define POISON(start, bytes) (void)0
#define UNPOISON(start, bytes) (void)0
template <class T> constexpr int64_t GAP = 0;
#endif

struct View {
  void *data;
  int64_t stride[4];  // of batch, head, row; the last of column (mask, bias) or of segment
};

struct KernelArgs {  // as in kernel_args.py
  const char *kernel;
  int64_t batch, heads, key_heads, queries, keys, dim, value_dim;
  int64_t segments, segment_rows, tile_rows, threads;
  int64_t all_batches, all_heads;  // whether one task goes over all of them
  int64_t want_parameter, causal, window;
  double scale, softcap, dropout;
  const int64_t *seed, *key_lengths;
  const double *parameter, *sink;  // of each head; sink or null
  const uint8_t *special_keys;  // (batch, keys), or null
  void *statistics;             // (batch, heads, queries, STATISTICS), or null
  View query, key, value, mask, bias;
  View out;  // its gradient in backward
  View grad_query, grad_key, grad_value, grad_bias, grad_parameter;
};

template <class T> T *at(const View &view, int64_t b, int64_t h, int64_t row, int64_t segment = 0) {
  return (T *)view.data + b * view.stride[0] + h * view.stride[1] + row * view.stride[2] +
         segment * view.stride[3];
}

constexpr int64_t STATISTICS = 7;  // columns, as statistics.py names them

struct Range {
  int64_t from, to;
};

struct Columns : Range {  // the keys of a tile, and the whole vectors that hold them and the sink
  int64_t first, width;
};

static int64_t length_of(const KernelArgs &a, int64_t b) {
  return a.key_lengths ? std::clamp<int64_t>(a.key_lengths[b], 0, a.keys) : a.keys;
}

// the keys that query i may attend to, the mask apart
static Range row_range(const KernelArgs &a, int64_t b, int64_t i) {
  Range keys = {0, length_of(a, b)};
  if (a.causal) keys.to = std::min(keys.to, i + 1);
  if (a.window) keys = {std::max(keys.from, i - a.window + 1), std::min(keys.to, i + a.window)};
  return {std::min(keys.from, keys.to), keys.to};
}

// the keys that some query of the tile attends to; padding costs nothing but this look at the mask
static Range tile_range(const KernelArgs &a, int64_t b, int64_t h, int64_t start, int64_t rows) {
  Range keys = {row_range(a, b, start).from, row_range(a, b, start + rows - 1).to};
  keys.to = std::max(keys.from, keys.to);
  if (!a.mask.data || a.mask.stride[3] != 1) return keys;
  int64_t first = keys.to, last = keys.from;
  for (int64_t i = a.mask.stride[2] ? rows - 1 : 0; i >= 0; i--) {
    const uint8_t *mask = at<uint8_t>(a.mask, b, h, start + i);
    int64_t j = keys.to;
    while (j > last && !mask[j - 1]) j--;
    last = std::max(last, j);
    j = keys.from;
    while (j < first && !mask[j]) j++;
    first = std::min(first, j);
  }
  return {std::min(first, last), last};
}

static uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// the factors of one row of weights: a function of seed, row and column alone
template <class T>
static void draw_keep(const KernelArgs &a, uint64_t row, int64_t first, int64_t n, T *keep) {
  const uint64_t key = mixed(mixed((uint64_t)*a.seed) ^ row);
  const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
  const int32_t dropped = (int32_t)std::lround(a.dropout * 16777216.0);
  const T kept = (T)(1 / (1 - a.dropout));
  for (int32_t j = 0; j < n; j++) {
    uint32_t x = (uint32_t)(first + j) * 0x9e3779b9u ^ low;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = ((x ^ (x >> 15)) + high) * 0x846ca68bu;
    x ^= x >> 16;
    keep[j] = (int32_t)(x >> 8) < dropped ? T(0) : kept;
  }
}

// One task: its buffers and its loops.
template <class T> struct Task {
  const KernelArgs &a;
  const Map<T> &map;
  bool backward;
  int64_t dim, value_dim, stride;  // padded
  T *keys_t, *key_rows, *values_t, *values, *sum_keys, *sum_values;
  T *queries, *outs, *scores, *grads, *slopes, *keep, *special, *scratch;

  Task(const KernelArgs &a, const Map<T> &map, bool backward)
      : a(a), map(map), backward(backward), dim(padded<T>(a.dim)),
        value_dim(padded<T>(a.value_dim)) {
    int64_t wide = (a.keys + PANEL<T> - 1) / PANEL<T> * PANEL<T>;
    stride = wide + LANES<T>;  // not a power of 2, whose columns would share cache lines
    int64_t tile = a.tile_rows * stride;
    struct Need {
      T **buffer;
      int64_t size;
    } needs[] = {{&keys_t, wide * a.dim},
                 {&values, wide * value_dim},
                 {&queries, a.tile_rows * dim},
                 {&outs, a.tile_rows * std::max(dim, value_dim)},
                 {&scores, tile},
                 {&keep, stride},
                 {&special, a.special_keys ? stride : 0},
                 {&slopes, a.softcap > 0 ? tile : 0},
                 {&key_rows, backward ? wide * dim : 0},
                 {&values_t, backward ? wide * a.value_dim : 0},
                 {&sum_keys, backward ? wide * dim : 0},
                 {&sum_values, backward ? wide * value_dim : 0},
                 {&grads, backward ? tile : 0},
                 {&scratch, 2 * stride}};
    int64_t total = 64 / sizeof(T);
    for (const Need &need : needs) total += padded<T>(need.size) + GAP<T>;
    // kept by the thread from call to call: fresh pages are slow
    static thread_local std::vector<T> memory;
    UNPOISON(memory.data(), memory.size() * sizeof(T));
    if ((int64_t)memory.size() < total) memory.resize(total);
    T *next = (T *)(((uintptr_t)memory.data() + 63) / 64 * 64);
    for (const Need &need : needs) {
      *need.buffer = next, next += padded<T>(need.size) + GAP<T>;
      POISON(next - GAP<T>, GAP<T> * sizeof(T));
    }
  }

  void run(int64_t b, int64_t key_head, int64_t segment) {
    const T *key = at<T>(a.key, b, key_head, 0), *value = at<T>(a.value, b, key_head, 0);
    int64_t n = length_of(a, b);
    pack_transposed<T>(key, a.key.stride[2], n, a.dim, keys_t);
    if (backward) {
      copy_padded<T>(key, a.key.stride[2], n, a.dim, 1, key_rows);
      pack_transposed<T>(value, a.value.stride[2], n, a.value_dim, values_t);
      std::fill(sum_keys, sum_keys + a.keys * dim, T(0));
      std::fill(sum_values, sum_values + a.keys * value_dim, T(0));
    } else {
      copy_padded<T>(value, a.value.stride[2], n, a.value_dim, 1, values);
    }
    if (a.special_keys) {
      std::copy_n(a.special_keys + b * a.keys, a.keys, special);
      std::fill(special + a.keys, special + stride, T(0));
    }
    int64_t end = std::min(a.queries, (segment + 1) * a.segment_rows);
    int64_t groups = a.heads / a.key_heads;
    for (int64_t h = key_head * groups; h < (key_head + 1) * groups; h++) {
      Slopes by = {};
      for (int64_t i = segment * a.segment_rows; i < end; i += a.tile_rows) {
        int64_t rows = std::min(a.tile_rows, end - i);
        if (backward) tile_backward(b, h, i, rows, by);
        else tile_forward(b, h, i, rows);
      }
      if (backward) std::memcpy(at<T>(a.grad_parameter, b, h, 0, segment), &by, sizeof by);
    }
    if (!backward) return;
    copy_back<T>(sum_keys, a.keys, a.dim, 1, at<T>(a.grad_key, b, key_head, 0, segment),
                 a.grad_key.stride[2]);
    copy_back<T>(sum_values, a.keys, a.value_dim, 1, at<T>(a.grad_value, b, key_head, 0, segment),
                 a.grad_value.stride[2]);
  }

  struct Slopes {  // of a head
    T theta, sink;
  };

  // the scores of a tile, -inf where masked, and the columns they are in
  Columns score(int64_t b, int64_t h, int64_t start, int64_t rows) {
    Range keys = tile_range(a, b, h, start, rows);
    int64_t first = keys.from / PANEL<T> * PANEL<T>;
    int64_t width = keys.to > keys.from ? padded<T>(keys.to - first) : 0;
    // a sink is one more score, beyond those that meet a value
    int64_t mapped = width && a.sink ? padded<T>(keys.to - first + 1) : width;
    copy_padded<T>(at<T>(a.query, b, h, start), a.query.stride[2], rows, a.dim, (T)a.scale,
                   queries);
    multiply<T>({queries, dim, 1}, keys_t + first * a.dim, PANEL<T>, PANEL<T> * a.dim, rows, a.dim,
                width, scores, stride, false);
    for (int64_t i = 0; i < rows; i++) {
      T *x = scores + i * stride;
      if (a.softcap > 0) cap(x, slopes + i * stride, width);
      Range own = row_range(a, b, start + i);
      own = {std::max(own.from, keys.from) - first, std::min(own.to, keys.to) - first};
      own.to = std::max(own.from = std::min(own.from, width), std::min(own.to, width));
      if (a.bias.data) {
        const T *bias = at<T>(a.bias, b, h, start + i, first);
        if (a.bias.stride[3])
          for (int64_t j = own.from; j < own.to; j++) x[j] += bias[j];
        else
          for (int64_t j = own.from; j < own.to; j++) x[j] += *bias;
      }
      if (a.mask.data) hide(x, at<uint8_t>(a.mask, b, h, start + i, first), own);
      std::fill(x, x + own.from, -INF<T>);
      std::fill(x + own.to, x + mapped, -INF<T>);
      if (mapped && a.sink) x[keys.to - first] = (T)a.sink[h];
    }
    return {keys, first, mapped};
  }

  void hide(T *__restrict x, const uint8_t *__restrict mask, Range own) {
    if (a.mask.stride[3])
      for (int64_t j = own.from; j < own.to; j++) x[j] = mask[j] ? x[j] : -INF<T>;
    else if (!*mask) std::fill(x + own.from, x + own.to, -INF<T>);
  }

  void cap(T *x, T *slope, int64_t width) {
    for (int64_t j = 0; j < width; j += LANES<T>) {
      Vec<T> t = tanh(load(x + j) * T(1 / a.softcap));
      store<T>(x + j, t * T(a.softcap));
      store<T>(slope + j, 1 - t * t);
    }
  }

  // One row, from scores to weights and, with g, to their gradients. NaN or +inf spoils it.
  T map_row(int64_t b, int64_t h, int64_t i, T *x, T *g, const Columns &keys) {
    Row<T> row = {};
    row.x = x, row.g = g, row.n = keys.width, row.theta = a.parameter[h];
    row.u = scratch, row.v = scratch + stride, row.want_theta = a.want_parameter;
    Vec<T> top = all(-INF<T>);
    Int<T> valid = Int<T>{}, odd = Int<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> s = load(x + j);
      top = s > top ? s : top;
      valid -= (Int<T>)(s != -INF<T>);
      odd -= (Int<T>)(s != s);
    }
    row.top = largest<T>(top), row.valid = count<T>(valid);
    bool spoiled = count<T>(odd) || row.top == INF<T> || row.theta != row.theta;
    if (!row.valid || spoiled) {
      T bad = std::numeric_limits<T>::quiet_NaN();
      for (int64_t j = 0; j < row.n; j++) x[j] = x[j] != -INF<T> ? bad : 0;
      if (g) std::copy(x, x + row.n, g);
      if (a.sink) x[keys.to - keys.first] = 0;
      if (a.statistics) measure(row, b, h, i, keys.first);
      return row.valid ? bad : 0;
    }
    if (a.seed)
      draw_keep<T>(a, (uint64_t)((b * a.heads + h) * a.queries + i), keys.first, row.n, keep);
    // what is measured are the weights before dropout
    row.keep = a.seed && !a.statistics ? keep : nullptr;
    if (g) return map.backward(row);
    map.forward(row);
    if (!a.statistics) return 0;
    if (a.sink) x[keys.to - keys.first] = 0;
    measure(row, b, h, i, keys.first);
    if (a.seed) EACH_VECTOR(row, j) store<T>(x + j, load(x + j) * load(keep + j));
    return 0;
  }

  void measure(const Row<T> &row, int64_t b, int64_t h, int64_t i, int64_t first) {
    Vec<T> entropy = Vec<T>{}, named = Vec<T>{}, total = Vec<T>{};
    Int<T> support = Int<T>{};
    EACH_VECTOR(row, j) {
      Vec<T> p = load(row.x + j);
      support -= (Int<T>)(p > 0);
      total += p;
      entropy -= p > 0 ? p * log(p) : Vec<T>{};
      if (a.special_keys) named += p * load(special + first + j);
    }
    T *result = (T *)a.statistics + ((b * a.heads + h) * a.queries + i) * STATISTICS;
    T mass = sum<T>(total), bad = mass * 0;  // NaN where the row is
    int64_t valid = row.valid - (a.sink != nullptr);
    T size = mass == 0 ? T(1) : mass;
    result[0] = valid > 0, result[1] = valid, result[2] = count<T>(support) + bad;
    result[3] = sum<T>(entropy) / size + std::log(size), result[4] = sum<T>(named) + bad;
    result[5] = a.special_keys && valid, result[6] = mass;
  }

  void tile_forward(int64_t b, int64_t h, int64_t start, int64_t rows) {
    Columns keys = score(b, h, start, rows);
    for (int64_t i = 0; i < rows && keys.width; i++)
      map_row(b, h, start + i, scores + i * stride, nullptr, keys);
    multiply<T>({scores + keys.from - keys.first, stride, 1}, values + keys.from * value_dim,
                value_dim, PANEL<T>, rows, keys.to - keys.from, value_dim, outs, value_dim, false);
    copy_back<T>(outs, rows, a.value_dim, 1, at<T>(a.out, b, h, start), a.out.stride[2]);
  }

  void tile_backward(int64_t b, int64_t h, int64_t start, int64_t rows, Slopes &by) {
    Columns keys = score(b, h, start, rows);
    int64_t n = keys.to - keys.from, offset = keys.from - keys.first;
    copy_padded<T>(at<T>(a.out, b, h, start), a.out.stride[2], rows, a.value_dim, 1, outs);
    multiply<T>({outs, value_dim, 1}, values_t + keys.first * a.value_dim, PANEL<T>,
                PANEL<T> * a.value_dim, rows, a.value_dim, keys.width ? padded<T>(keys.to - keys.first) : 0, grads,
                stride, false);
    for (int64_t i = 0; i < rows && keys.width; i++) {
      T *x = scores + i * stride, *g = grads + i * stride;
      int64_t sink = keys.to - keys.first;
      if (a.sink) std::fill(g + sink, g + keys.width, T(0));  // its value is 0
      by.theta += map_row(b, h, start + i, x, g, keys);
      if (a.sink) by.sink += g[sink];
      if (a.grad_bias.data) {
        T *bias = at<T>(a.grad_bias, b, h, start + i);
        for (int64_t j = keys.from; j < keys.to; j++)
          bias[j * a.grad_bias.stride[3]] += g[j - keys.first];
      }
      if (a.softcap > 0)
        for (int64_t j = 0; j < keys.width; j++) g[j] *= slopes[i * stride + j];
    }
    multiply<T>({scores + offset, 1, stride}, outs, value_dim, PANEL<T>, n, rows, value_dim,
                sum_values + keys.from * value_dim, value_dim, true);
    multiply<T>({grads + offset, 1, stride}, queries, dim, PANEL<T>, n, rows, dim,
                sum_keys + keys.from * dim, dim, true);
    multiply<T>({grads + offset, stride, 1}, key_rows + keys.from * dim, dim, PANEL<T>, rows, n,
                dim, outs, dim, false);
    copy_back<T>(outs, rows, a.dim, (T)a.scale, at<T>(a.grad_query, b, h, start),
                 a.grad_query.stride[2]);
  }
};

template <class T> static void run(const KernelArgs &a, bool backward) {
  const Map<T> &map = *find_map<T>(a.kernel);
  int64_t batches = a.all_batches ? 1 : a.batch, heads = a.all_heads ? 1 : a.key_heads;
  int64_t tasks = batches * heads * a.segments;
  auto do_task = [&](int64_t index) {
    Task<T> task(a, map, backward);
    int64_t segment = index % a.segments, h = index / a.segments % heads;
    int64_t b = index / a.segments / heads;
    for (int64_t bb = b; bb < (a.all_batches ? a.batch : b + 1); bb++)
      for (int64_t hh = h; hh < (a.all_heads ? a.key_heads : h + 1); hh++)
        task.run(bb, hh, segment);
  };
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads((int)a.threads)
  for (int64_t index = 0; index < tasks; index++) do_task(index);
#else
  std::atomic<int64_t> next{0};
  auto work = [&] {
    for (int64_t index; (index = next++) < tasks;) do_task(index);
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < std::min(a.threads, tasks); i++) threads.emplace_back(work);
  work();
  for (std::thread &thread : threads) thread.join();
#endif
}

extern "C" {
int64_t size_of_args() { return sizeof(KernelArgs); }
void attention_float(const KernelArgs *a, int64_t backward) { run<float>(*a, backward); }
void attention_double(const KernelArgs *a, int64_t backward) { run<double>(*a, backward); }
}
