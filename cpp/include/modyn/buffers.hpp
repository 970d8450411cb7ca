// Memory for results. A fresh buffer costs as much as filling it: the kernel clears every page of it first. So a few are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace modyn {

class BufferPool;

// Gives a buffer back to its pool, from any thread; without a pool, to the system.
struct GiveBack {
  BufferPool* pool = nullptr;
  std::size_t capacity = 0;

  void operator()(std::uint8_t* data) const noexcept;
};

// Writable memory of at least the size asked for, with undefined content: `get_deleter().capacity` bytes.
using Buffer = std::unique_ptr<std::uint8_t, GiveBack>;

// Keeps at most `max_kept_bytes` of unused buffers, at most 64, the latest ones. Must outlive its buffers.
class BufferPool {
 public:
  explicit BufferPool(std::size_t max_kept_bytes);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // The pool of this process; it keeps up to 128 MiB.
  static BufferPool& of_process();

  // Throws std::bad_alloc.
  Buffer take(std::size_t size);
  std::size_t kept_bytes() const;

 private:
  friend GiveBack;
  void keep(Buffer buffer) noexcept;

  std::size_t max_kept_bytes_;
  // Only ever tried, never waited for: after a fork, the lock of a thread that no longer exists stays locked.
  mutable std::mutex mutex_;
  std::vector<Buffer> kept_;  // without a pool, oldest first; never grows beyond what is reserved
  std::size_t kept_bytes_ = 0;
};

}  // namespace modyn
