#include <atomic>
#include <cstdlib>
#include <new>

#include "doctest/doctest.h"
#include "modyn/parallel.hpp"

// Sanitizers have their own memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

// Number of further allocations that this thread may make; negative: unlimited.
thread_local int allocations_left = -1;

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = allocations_left == 0 ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("where there is no memory for all threads, those that there are do the work") {
  std::atomic<int> done{0};
  allocations_left = 2;  // enough for the list of threads and one of three threads
  modyn::parallel_for(100, 4, [&](std::size_t) { ++done; });
  allocations_left = -1;
  CHECK(done == 100);
}
#endif
