#include "modyn/buffers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace modyn {
namespace {

constexpr std::size_t huge_page = 2 << 20;
constexpr std::size_t page = 4 << 10;
constexpr std::size_t max_kept = 64;

std::uint8_t* map_memory(std::size_t capacity) {
  // Huge pages need an aligned address: ask for more and give the ends back.
  const std::size_t slack = capacity < huge_page ? 0 : huge_page - page;
  void* const mapped = ::mmap(nullptr, capacity + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::uint8_t*>(mapped);
  if (slack == 0) return begin;
  const std::size_t before = (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
  if (before > 0) ::munmap(begin, before);
  if (slack > before) ::munmap(begin + before + capacity, slack - before);
  ::madvise(begin + before, capacity, MADV_HUGEPAGE);  // refused where there are none; small pages do as well
  return begin + before;
}

}  // namespace

void GiveBack::operator()(std::uint8_t* data) const noexcept { pool->give_back({data, capacity}); }

BufferPool& BufferPool::of_process() {
  // Never destroyed: arrays may outlive the statics of this library.
  static auto* const pool = new BufferPool(128 << 20);
  return *pool;
}

BufferPool::BufferPool(std::size_t max_kept_bytes) : max_kept_bytes_(max_kept_bytes) { kept_.reserve(max_kept); }

BufferPool::~BufferPool() {
  for (const auto& kept : kept_) ::munmap(kept.data, kept.capacity);
}

Buffer BufferPool::take(std::size_t size) {
  if (size == 0) return {};
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
    auto best = kept_.end();
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      // Not one of more than twice the size: small results that are held for long must not hold large buffers.
      const bool fits = kept->capacity >= size && kept->capacity / 2 <= std::max(size, page);
      if (fits && (best == kept_.end() || kept->capacity <= best->capacity)) best = kept;
    }
    if (best != kept_.end()) {
      const FreeBuffer found = *best;
      kept_.erase(best);
      kept_bytes_ -= found.capacity;
      return Buffer(found.data, {this, found.capacity});
    }
  }
  const std::size_t unit = size < huge_page ? page : huge_page;
  const std::size_t capacity = (size + unit - 1) / unit * unit;
  return Buffer(map_memory(capacity), {this, capacity});
}

void BufferPool::give_back(FreeBuffer buffer) noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (buffer.capacity > max_kept_bytes_ || !lock.try_lock()) {
    ::munmap(buffer.data, buffer.capacity);
    return;
  }
  while (kept_bytes_ + buffer.capacity > max_kept_bytes_ || kept_.size() == max_kept) {
    ::munmap(kept_.front().data, kept_.front().capacity);
    kept_bytes_ -= kept_.front().capacity;
    kept_.erase(kept_.begin());
  }
  kept_.push_back(buffer);
  kept_bytes_ += buffer.capacity;
}

std::size_t BufferPool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace modyn
