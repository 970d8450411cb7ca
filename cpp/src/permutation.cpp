#include "modyn/permutation.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "modyn/errors.hpp"
#include "modyn/parallel.hpp"
#include "modyn/random.hpp"

namespace modyn {
namespace {

// 128 KiB of numbers: half of a typical second-level cache.
constexpr std::size_t bucket_size = std::size_t{1} << 14;
// With more buckets, each number would cause a TLB miss. Beyond 67 million numbers, the buckets grow instead.
constexpr unsigned most_bits = 12;
// Count of numbers that one random sequence distributes; larger for many numbers, so that the counts by chunk and bucket take at most 2 MiB.
constexpr std::size_t chunk_size = std::size_t{1} << 18;
constexpr std::size_t most_chunks = 64;

// Draws a bucket for each number, with `bits` random bits.
class BucketSampler {
 public:
  BucketSampler(const Random& random, unsigned bits) : random_(random), bits_(bits) {}

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

 private:
  Random random_;
  std::uint64_t drawn_ = 0;
  unsigned bits_;
  unsigned left_ = 0;
};

// The shuffle of Fisher and Yates.
void shuffle(Random& random, std::int64_t* numbers, std::size_t count) {
  for (std::size_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[random.below(static_cast<std::uint32_t>(i))]);
}

// Random sequence number `stream` of a seed. Each word is mixed with its own number (SplitMix64, Steele 2014).
Random sequence(const Seed& seed, std::uint64_t stream) {
  Seed words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint64_t word = seed[i] + (words.size() * stream + i + 1) * 0x9e3779b97f4a7c15ULL;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
    words[i] = word ^ (word >> 31);
  }
  return Random(words);
}

}  // namespace

void permutation(const Seed& seed, std::size_t count, std::int64_t* into, std::size_t threads) {
  if (seed == Seed{}) throw InvalidArgument("a seed of zeros gives no random numbers");
  if (count >> 40 != 0) throw InvalidArgument("at most 2^40 - 1 numbers can be shuffled, not " + std::to_string(count));
  unsigned bits = 0;
  while (bits < most_bits && (count >> bits) > bucket_size) ++bits;
  const std::size_t buckets = std::size_t{1} << bits;
  // Chunks and their random sequences depend only on `count`, not on the number of threads.
  const std::size_t chunks = std::min(most_chunks, 1 + count / chunk_size);
  const auto chunk_start = [&](std::size_t number) { return count * number / chunks; };
  // The same buckets are drawn twice: first to count the numbers of each chunk in each bucket, then to place them.
  std::vector<std::vector<std::size_t>> next(chunks, std::vector<std::size_t>(buckets));
  parallel_for(chunks, threads, [&](std::size_t number) {
    BucketSampler sampler(sequence(seed, number), bits);
    for (std::size_t i = chunk_start(number); i < chunk_start(number + 1); ++i) ++next[number][sampler.next()];
  });
  std::vector<std::size_t> starts(buckets + 1);
  std::size_t start = 0;
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    starts[bucket] = start;
    for (auto& of_chunk : next) start += std::exchange(of_chunk[bucket], start);
  }
  starts[buckets] = start;
  parallel_for(chunks, threads, [&](std::size_t number) {
    BucketSampler sampler(sequence(seed, number), bits);
    for (std::size_t i = chunk_start(number); i < chunk_start(number + 1); ++i) into[next[number][sampler.next()]++] = static_cast<std::int64_t>(i);
  });
  parallel_for(buckets, threads, [&](std::size_t bucket) {
    Random random = sequence(seed, most_chunks + bucket);
    shuffle(random, into + starts[bucket], starts[bucket + 1] - starts[bucket]);
  });
}

}  // namespace modyn
