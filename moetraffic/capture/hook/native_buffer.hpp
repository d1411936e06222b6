// Records of calls that wait to be taken: words in chunks, under a lock held for as
// long as it takes to copy a record.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace moetraffic {

using Words = std::vector<int64_t>;

constexpr size_t CHUNK_WORDS = size_t{1} << 14;
constexpr size_t MOST_WORDS = size_t{2} << 20;  // 16 MB that nobody has taken yet

class Buffer {
 public:
  // Room for so many words, filled by `write` under the lock; false where it is full.
  template <typename Write>
  bool put(size_t length, bool droppable, Write write) {
    std::lock_guard<std::mutex> guard(lock_);
    if (droppable && words_ + length > MOST_WORDS) {
      ++lost_;
      return false;
    }
    if (static_cast<size_t>(end_ - next_) < length) grow(length);
    write(next_);
    next_ += length;
    words_ += length;
    ++waiting_;
    return true;
  }

  std::deque<Words> take(int64_t& lost) {
    std::lock_guard<std::mutex> guard(lock_);
    end_chunk();
    next_ = end_ = nullptr;
    lost = lost_;
    lost_ = 0;
    words_ = 0;
    waiting_ = 0;
    std::deque<Words> taken;
    taken.swap(chunks_);
    return taken;
  }

  // A chunk that was read serves again: no call waits for the allocator.
  void give_back(std::deque<Words> read) {
    std::lock_guard<std::mutex> guard(lock_);
    for (Words& chunk : read) {
      if (spare_.size() < 8 && chunk.capacity() == CHUNK_WORDS) {
        spare_.push_back(std::move(chunk));
      }
    }
  }

  int64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  void grow(size_t length) {
    end_chunk();
    if (!spare_.empty() && length <= CHUNK_WORDS) {
      chunks_.push_back(std::move(spare_.back()));
      spare_.pop_back();
      chunks_.back().resize(CHUNK_WORDS);
    } else {
      chunks_.emplace_back(std::max(CHUNK_WORDS, length));
    }
    next_ = chunks_.back().data();
    end_ = next_ + chunks_.back().size();
  }

  // Cuts the last chunk to the words that were written.
  void end_chunk() {
    if (!chunks_.empty()) chunks_.back().resize(next_ - chunks_.back().data());
  }

  // What a call touches comes first, together: training has emptied the caches.
  alignas(64) std::mutex lock_;
  int64_t* next_ = nullptr;
  int64_t* end_ = nullptr;
  size_t words_ = 0;
  std::atomic<int64_t> waiting_{0};
  std::deque<Words> chunks_;
  std::vector<Words> spare_;
  int64_t lost_ = 0;
};

}  // namespace moetraffic
