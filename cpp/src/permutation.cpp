#include "modyn/permutation.hpp"

#include <string>
#include <utility>
#include <vector>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

// 128 KiB of numbers: half of a usual second cache.
constexpr std::size_t bucket_size = std::size_t{1} << 14;
// More would miss the table of pages at each number dealt; the buckets of more than 67 million numbers are larger.
constexpr unsigned most_bits = 12;

// xoshiro256++ 1.0 (Blackman and Vigna 2019).
class Random {
 public:
  explicit Random(const std::array<std::uint64_t, 4>& seed) : state_(seed) {}

  std::uint64_t next() {
    const std::uint64_t result = rotated(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotated(state_[3], 45);
    return result;
  }

  // Below `bound`, each equally likely: a product's upper half, drawn again where the lower half shows a bias (Lemire 2019).
  std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = (next() >> 32) * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t least = (0U - bound) % bound;
      while (static_cast<std::uint32_t>(product) < least) product = (next() >> 32) * bound;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  static std::uint64_t rotated(std::uint64_t value, unsigned by) { return (value << by) | (value >> (64 - by)); }

  std::array<std::uint64_t, 4> state_;
};

// The buckets that numbers are dealt to, one after the other: `bits` random bits each.
class Dealer {
 public:
  Dealer(const Random& random, unsigned bits) : random_(random), bits_(bits) {}

  std::size_t next() {
    if (left_ < bits_) {
      drawn_ = random_.next();
      left_ = 64;
    }
    const auto bucket = static_cast<std::size_t>(drawn_ & ((std::uint64_t{1} << bits_) - 1));
    drawn_ >>= bits_;
    left_ -= bits_;
    return bucket;
  }

  const Random& random() const { return random_; }

 private:
  Random random_;
  std::uint64_t drawn_ = 0;
  unsigned bits_;
  unsigned left_ = 0;
};

// Fisher and Yates.
void shuffle(Random& random, std::int64_t* numbers, std::size_t count) {
  for (std::size_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[random.below(static_cast<std::uint32_t>(i))]);
}

}  // namespace

void permutation(const std::array<std::uint64_t, 4>& seed, std::size_t count, std::int64_t* into) {
  if (seed == std::array<std::uint64_t, 4>{}) throw InvalidArgument("a seed of zeros gives no random numbers");
  if (count >> 40 != 0) throw InvalidArgument("at most 2^40 - 1 numbers can be shuffled, not " + std::to_string(count));
  unsigned bits = 0;
  while (bits < most_bits && (count >> bits) > bucket_size) ++bits;
  Random random(seed);
  if (bits == 0) {
    for (std::size_t i = 0; i < count; ++i) into[i] = static_cast<std::int64_t>(i);
    return shuffle(random, into, count);
  }
  // The numbers are dealt twice alike: to learn how many each bucket gets, and to put them there.
  std::vector<std::size_t> ends((std::size_t{1} << bits) + 1);
  Dealer counted(random, bits);
  for (std::size_t i = 0; i < count; ++i) ++ends[counted.next() + 1];
  for (std::size_t bucket = 1; bucket < ends.size(); ++bucket) ends[bucket] += ends[bucket - 1];
  Dealer dealt(random, bits);
  for (std::size_t i = 0; i < count; ++i) into[ends[dealt.next()]++] = static_cast<std::int64_t>(i);
  random = dealt.random();
  std::size_t start = 0;
  for (std::size_t bucket = 0; bucket + 1 < ends.size(); ++bucket) {
    shuffle(random, into + start, ends[bucket] - start);
    start = ends[bucket];
  }
}

}  // namespace modyn
