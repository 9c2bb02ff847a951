// Supports that the forward pass keeps for backward.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

template <class T> struct Lists {  // columns and scores of a task's supports, row by row
  std::vector<int32_t> columns;
  std::vector<T> scores;
  int64_t rows = 0;
};

// their memory is reused between calls, because fresh pages are slow
template <class T> struct Pool {
  std::mutex lock;
  std::vector<Lists<T>> free;
  Lists<T> take() {
    std::lock_guard<std::mutex> held(lock);
    if (free.empty()) return {};
    Lists<T> lists = std::move(free.back());
    return free.pop_back(), lists;
  }
  void give(Lists<T> &lists) {
    std::lock_guard<std::mutex> held(lock);
    lists.columns.clear(), lists.scores.clear(), lists.rows = 0;
    if (free.size() < 64) free.push_back(std::move(lists));
  }
};
template <class T> static Pool<T> pool;
