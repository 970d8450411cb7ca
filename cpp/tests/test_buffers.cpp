#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/buffers.hpp"

TEST_CASE("a buffer that is given back is the next one of about its size") {
  modyn::BufferPool pool(100 << 20);
  std::uint8_t* first = nullptr;
  {
    const modyn::Buffer buffer = pool.take(10'000'000);
    CHECK(buffer.get_deleter().capacity >= 10'000'000);
    first = buffer.get();
    std::memset(first, 1, buffer.get_deleter().capacity);
  }
  CHECK(pool.kept_bytes() >= 10'000'000);
  CHECK(pool.take(100).get() != first);  // a small result must not occupy a large buffer
  const modyn::Buffer again = pool.take(9'000'000);
  CHECK(again.get() == first);
  CHECK(pool.take(9'000'000).get() != first);
}

TEST_CASE("a pool keeps no more than it may, the latest ones") {
  modyn::BufferPool pool(8 << 20);
  modyn::Buffer a = pool.take(4 << 20);
  modyn::Buffer b = pool.take(4 << 20);
  modyn::Buffer c = pool.take(4 << 20);
  const auto* const last = c.get();
  a = {};
  b = {};
  c = {};
  CHECK(pool.kept_bytes() == 8 << 20);
  std::vector<modyn::Buffer> taken;
  taken.push_back(pool.take(4 << 20));
  taken.push_back(pool.take(4 << 20));
  CHECK((taken[0].get() == last || taken[1].get() == last));
  CHECK(pool.kept_bytes() == 0);
  pool.take(9 << 20);
  CHECK(pool.kept_bytes() == 0);  // too large to keep
  for (int i = 0; i < 200; ++i) taken.push_back(pool.take(4096));
  taken.clear();
  CHECK(pool.kept_bytes() <= 8 << 20);
}

TEST_CASE("buffers move, and an empty one is nothing") {
  modyn::BufferPool pool(8 << 20);
  CHECK(pool.take(0).get() == nullptr);
  modyn::Buffer a = pool.take(10);
  const auto* const data = a.get();
  modyn::Buffer b = std::move(a);
  a = pool.take(20);
  std::swap(a, b);
  CHECK(a.get() == data);
}

TEST_CASE("threads share a pool") {
  modyn::BufferPool pool(1 << 20);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t size = 1; size < 100'000; size += 997) {
        const modyn::Buffer buffer = pool.take(size);
        std::memset(buffer.get(), thread, size);
        wrong += buffer.get()[size / 2] != thread;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
