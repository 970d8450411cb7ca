// Reusable memory for results. Allocating a new buffer takes as long as filling it, because the kernel clears each page. So a few unused
// buffers are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace modyn {

class BufferPool;

// Returns a buffer to its pool, from any thread. Without a pool, it frees the buffer.
struct GiveBack {
  BufferPool* pool = nullptr;
  std::size_t capacity = 0;

  void operator()(std::uint8_t* data) const noexcept;
};

// Writable memory of at least the requested size, with undefined content: `get_deleter().capacity` bytes.
using Buffer = std::unique_ptr<std::uint8_t, GiveBack>;

// Keeps at most `max_kept_bytes` in at most 64 unused buffers, the latest ones. Must outlive its buffers.
class BufferPool {
 public:
  explicit BufferPool(std::size_t max_kept_bytes);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // The pool of this process, which keeps up to 128 MiB.
  static BufferPool& of_process();

  // Throws std::bad_alloc.
  Buffer take(std::size_t size);
  std::size_t kept_bytes() const;

 private:
  friend GiveBack;
  void keep(Buffer buffer) noexcept;

  std::size_t max_kept_bytes_;
  // Protects kept_. Code only tries to lock it and never waits: after a fork, the lock may stay locked by a thread that no longer exists.
  mutable std::mutex mutex_;
  std::vector<Buffer> kept_;  // without a pool, oldest first; never grows beyond its reserved size
  std::size_t kept_bytes_ = 0;
};

}  // namespace modyn
