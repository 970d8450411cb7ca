#include "modyn/buffers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace modyn {
namespace {

constexpr std::size_t huge_page = 2 << 20;
constexpr std::size_t page = 4 << 10;
constexpr std::size_t max_kept = 64;

std::size_t capacity_of(const Buffer& buffer) { return buffer.get_deleter().capacity; }

std::uint8_t* map_memory(std::size_t capacity) {
  // Huge pages need an aligned address: map more memory, and unmap both ends.
  const std::size_t slack = capacity < huge_page ? 0 : huge_page - page;
  void* const mapped = ::mmap(nullptr, capacity + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::uint8_t*>(mapped);
  if (slack == 0) return begin;
  const std::size_t before = (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
  if (before > 0) ::munmap(begin, before);
  if (slack > before) ::munmap(begin + before + capacity, slack - before);
  ::madvise(begin + before, capacity, MADV_HUGEPAGE);  // fails if the system has no huge pages; small pages work too
  return begin + before;
}

}  // namespace

void GiveBack::operator()(std::uint8_t* data) const noexcept {
  if (pool != nullptr) return pool->keep(Buffer(data, {nullptr, capacity}));
  ::munmap(data, capacity);
}

BufferPool& BufferPool::of_process() {
  // Never destroyed: arrays may outlive the static objects of this library.
  static auto* const pool = new BufferPool(128 << 20);
  return *pool;
}

BufferPool::BufferPool(std::size_t max_kept_bytes) : max_kept_bytes_(max_kept_bytes) { kept_.reserve(max_kept); }

Buffer BufferPool::take(std::size_t size) {
  if (size == 0) return {};
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
    auto best = kept_.end();
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      const std::size_t capacity = capacity_of(*kept);
      // A buffer of more than twice the size is not used: small results that live long must not occupy large buffers.
      const bool fits = capacity >= size && capacity / 2 <= std::max(size, page);
      if (fits && (best == kept_.end() || capacity <= capacity_of(*best))) best = kept;
    }
    if (best != kept_.end()) {
      Buffer found = std::move(*best);
      kept_.erase(best);
      kept_bytes_ -= capacity_of(found);
      found.get_deleter().pool = this;
      return found;
    }
  }
  const std::size_t unit = size < huge_page ? page : huge_page;
  const std::size_t capacity = (size + unit - 1) / unit * unit;
  return Buffer(map_memory(capacity), {this, capacity});
}

void BufferPool::keep(Buffer buffer) noexcept {
  const std::size_t capacity = capacity_of(buffer);
  std::unique_lock lock(mutex_, std::defer_lock);
  if (capacity > max_kept_bytes_ || !lock.try_lock()) return;
  while (kept_bytes_ + capacity > max_kept_bytes_ || kept_.size() == max_kept) {
    kept_bytes_ -= capacity_of(kept_.front());
    kept_.erase(kept_.begin());
  }
  kept_.push_back(std::move(buffer));
  kept_bytes_ += capacity;
}

std::size_t BufferPool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace modyn
