#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/checksum.hpp"
#include "modyn/random.hpp"

namespace {

std::uint64_t checksum_of(const void* data, std::size_t size) {
  modyn::Checksum checksum;
  checksum.add(data, size);
  return checksum.value();
}

std::uint64_t checksum_of(const std::string& text) { return checksum_of(text.data(), text.size()); }

}  // namespace

TEST_CASE("checksums are XXH64") {
  CHECK(checksum_of("") == 0xEF46DB3751D8E999);
  CHECK(checksum_of("a") == 0xD24EC4F1A98C6E5B);
  CHECK(checksum_of("abc") == 0x44BC2CF5AD770999);
  CHECK(checksum_of("The quick brown fox jumps over the lazy dog") == 0x0B242D361FDA71BC);
  CHECK(checksum_of(nullptr, 0) == 0xEF46DB3751D8E999);
}

TEST_CASE("a checksum is the same however the bytes are cut, and at any address") {
  modyn::Random random({1, 2, 3, 4});
  std::vector<std::uint8_t> bytes(400);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  for (int round = 0; round < 2000; ++round) {
    const std::size_t start = random.below(16), size = random.below(static_cast<std::uint32_t>(bytes.size() - start + 1));
    // Of its own size, so that the sanitizer sees a read beyond it.
    const std::vector<std::uint8_t> exact(bytes.begin() + static_cast<long>(start), bytes.begin() + static_cast<long>(start + size));
    modyn::Checksum cut;
    for (std::size_t at = 0; at < size;) {
      const std::size_t more = random.below(static_cast<std::uint32_t>(size - at + 1));
      cut.add(bytes.data() + start + at, more);
      at += more;
      if (random.below(4) == 0) cut.value();  // must not change the checksum
    }
    CHECK(cut.value() == checksum_of(exact.data(), size));
  }
}

TEST_CASE("each changed bit, and each byte more or fewer, is another checksum") {
  std::vector<std::uint8_t> bytes(150, 7);
  const std::uint64_t before = checksum_of(bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    CHECK(checksum_of(bytes.data(), bytes.size()) != before);
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK(checksum_of(bytes.data(), size) != before);
}
