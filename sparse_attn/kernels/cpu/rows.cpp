// Attention on the CPU: tiles of query rows whose scores stay in cache, forward and backward.
//
// One task is one key head (or a segment of its queries, or one head of few queries) and belongs to
// one thread, which adds up its gradients in a fixed order, so results do not depend on the
// schedule and nothing is atomic.
#include <atomic>
#include <thread>

#include "backward.h"

// number of parts of the heads of a batch entry: those of a key head share copies of its keys and
// values or a pass over int8 keys, and without either each head is a part
template <class T> static int64_t parts_of(const KernelArgs &a, bool backward) {
  bool once = !backward && meets_once<T>(a, a.queries) && !a.int8_keys.data;
  return once ? a.heads : a.key_heads;
}

// calls body(b, heads, segment) for the parts of a task, each of one key head
template <class T, class Body>
static void each_part(const KernelArgs &a, bool backward, int64_t index, Body body) {
  int64_t parts = parts_of<T>(a, backward), size = a.heads / parts, tasks = a.all_heads ? 1 : parts;
  // the last queries first: with a causal mask they read most keys, and a thread that takes such a
  // task at the end keeps the others waiting
  int64_t batches = a.all_batches ? 1 : a.batch;
  int64_t segment = a.segments - 1 - index / (batches * tasks);
  int64_t part = index % tasks, b = index / tasks % batches;
  for (int64_t bb = b; bb < (a.all_batches ? a.batch : b + 1); bb++)
    for (int64_t i = part; i < (a.all_heads ? parts : part + 1); i++)
      body(bb, Range{i * size, (i + 1) * size}, segment);
}

template <class T> static void run(KernelArgs &a, bool backward) {
  const Map<T> &map = *find_map<T>(a.kernel);
  if (!by_top(map.few.floor)) a.int8_keys.data = nullptr;  // no reason for larger tasks
  int64_t batches = a.all_batches ? 1 : a.batch, parts = a.all_heads ? 1 : parts_of<T>(a, backward);
  int64_t tasks = batches * parts * a.segments;
  auto *lists = a.found && !backward ? new std::vector<Lists<T>>(tasks) : nullptr;
  auto do_task = [&](int64_t index) {
    if (lists) (*lists)[index] = pool<T>.take();
    Task<T> task(a, map, backward, lists ? &(*lists)[index] : nullptr);
    each_part<T>(a, backward, index,
              [&](int64_t b, Range heads, int64_t segment) { task.run(b, heads, segment); });
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
  a.lists = lists, a.entries = 0;
  if (!lists) return;
  if (a.keep_weights) {  // row by row, whatever the tasks
    for (int64_t row = 0; row < (a.starts ? 1 : a.batch) * a.heads * a.queries; row++)
      a.found[row].start = a.entries, a.entries += a.found[row].size;
    return;
  }
  // from starts in one task's lists to starts in the joined lists
  for (int64_t index = 0; index < tasks; index++) {
    each_part<T>(a, false, index, [&](int64_t b, Range heads, int64_t segment) {
      Range part = queries_of(a, b, segment);
      for (int64_t h = heads.from; h < heads.to; h++)
        for (int64_t i = part.from; i < part.to; i++)
          a.found[row_index(a, b, h, i)].start += a.entries;
    });
    a.entries += (int64_t)(*lists)[index].columns.size();
  }
}

// moves the weights of a task's rows to their places
template <class T> static void scatter_rows(KernelArgs &a, int64_t index, const Lists<T> &list) {
  int64_t from = 0;
  each_part<T>(a, false, index, [&](int64_t b, Range heads, int64_t segment) {
    Range part = queries_of(a, b, segment);
    for (int64_t h = heads.from; h < heads.to; h++)
      for (int64_t i = part.from; i < part.to; i++) {
        const Found &row = a.found[row_index(a, b, h, i)];
        std::copy_n(list.columns.begin() + from, row.size, a.columns + row.start);
        std::copy_n(list.scores.begin() + from, row.size, (T *)a.scores + row.start);
        from += row.size;
      }
  });
}

// moves the lists to `columns` and `scores` with `entries` each; without them, only frees the lists
template <class T> static void collect(KernelArgs &a) {
  auto *lists = (std::vector<Lists<T>> *)a.lists;
  int32_t *columns = a.columns;
  T *scores = (T *)a.scores;
  for (int64_t index = 0; index < (int64_t)lists->size(); index++) {
    Lists<T> &list = (*lists)[index];
    if (columns && a.keep_weights) {
      scatter_rows(a, index, list);
    } else if (columns) {
      columns = std::copy(list.columns.begin(), list.columns.end(), columns);
      scores = std::copy(list.scores.begin(), list.scores.end(), scores);
    }
    if (!a.keep_weights) pool<T>.give(list);  // the weights of a long text would stay in it
  }
  delete lists;
  a.lists = nullptr;
}

extern "C" {
int64_t size_of_args() { return sizeof(KernelArgs); }
void set_screening(int64_t mode) { screening = mode; }  // for tests
int64_t has_int8_keys(int64_t dim) { return has_int8_products(dim); }
// keeps keys [from, to), (batch, heads, ., dim), as int8 for `int8_keys`
void quantise_keys(const View *keys, const View *panels, int64_t batch, int64_t heads, int64_t dim,
                   int64_t from, int64_t to) {
#if defined(__AVX512F__)
  for (int64_t b = 0; b < batch; b++)
    for (int64_t h = 0; h < heads; h++)
      keep_bytes(at<float>(*keys, b, h, 0), keys->stride[2], dim, from, to,
                 at<uint8_t>(*panels, b, h, 0), panels->stride[2]);
#endif
}
void attention_float(KernelArgs *a, int64_t backward) { run<float>(*a, backward); }
void attention_double(KernelArgs *a, int64_t backward) { run<double>(*a, backward); }
void collect_float(KernelArgs *a) { collect<float>(*a); }
void collect_double(KernelArgs *a) { collect<double>(*a); }
}
