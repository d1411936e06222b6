// How long the hook itself took of calls: a histogram whose bins are a fifth wide at the
// most, so that adding to it is one atomic increment and it never grows.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace moetraffic {

class Spent {
 public:
  void add(int64_t ns) {
    bins_[bin_of(ns)].fetch_add(1, std::memory_order_relaxed);
  }

  void clear() {
    for (auto& bin : bins_) bin.store(0, std::memory_order_relaxed);
  }

  // (nanoseconds that a call took less than, how many calls) of every bin with calls
  std::vector<std::pair<int64_t, int64_t>> read() const {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (size_t n = 0; n < BINS; ++n) {
      const int64_t calls = bins_[n].load(std::memory_order_relaxed);
      if (calls) found.emplace_back(above(n), calls);
    }
    return found;
  }

 private:
  static constexpr size_t PARTS = 4;  // of an octave
  static constexpr size_t BINS = PARTS * 62;

  static size_t bin_of(int64_t ns) {
    if (ns < static_cast<int64_t>(PARTS)) return ns < 0 ? 0 : static_cast<size_t>(ns);
    size_t octave = 0;  // of PARTS nanoseconds and more
    while (ns >> octave >= static_cast<int64_t>(2 * PARTS)) ++octave;
    return PARTS * octave + static_cast<size_t>(ns >> octave);
  }

  static int64_t above(size_t bin) {
    if (bin < PARTS) return static_cast<int64_t>(bin) + 1;
    const size_t octave = bin / PARTS - 1;
    return static_cast<int64_t>(bin - PARTS * octave + 1) << octave;
  }

  std::array<std::atomic<int64_t>, BINS> bins_{};
};

}  // namespace moetraffic
