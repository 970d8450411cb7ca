// Splits work over a few short-lived threads. No thread survives the call, so a later fork or exit of the process finds no such thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace modyn {

// Calls work(i) once for each i in [0, count), on at most `threads` threads including the caller. The first exception stops further calls and is
// rethrown.
template <typename Work>
void parallel_for(std::size_t count, std::size_t threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto drain = [&] {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
        next.store(count);
      }
    }
  };
  std::vector<std::thread> others;
  const std::size_t extra = std::min(threads, count) > 1 ? std::min(threads, count) - 1 : 0;
  others.reserve(extra);
  try {
    for (std::size_t i = 0; i < extra; ++i) others.emplace_back(drain);
  } catch (...) {
    // If no further thread can be created, the started threads and this thread do the work.
  }
  drain();
  for (auto& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// Calls work(first, last) for ranges that cover [0, count), on at most `threads` threads; fewer if `bytes` bytes of work are too few for them.
template <typename Work>
void parallel_blocks(std::size_t count, std::int64_t bytes, std::size_t threads, const Work& work) {
  constexpr std::int64_t bytes_per_thread = 256 << 10;
  constexpr std::size_t blocks_per_thread = 4;
  const std::size_t useful = std::min(std::max<std::size_t>(threads, 1), 1 + static_cast<std::size_t>(bytes / bytes_per_thread));
  const std::size_t blocks = useful == 1 ? 1 : std::min(count, useful * blocks_per_thread);
  parallel_for(blocks, useful, [&](std::size_t block) { work(count * block / blocks, count * (block + 1) / blocks); });
}

}  // namespace modyn
