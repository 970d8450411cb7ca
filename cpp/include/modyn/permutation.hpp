// Random orders of many numbers, at the speed of memory rather than of cache misses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "modyn/random.hpp"

namespace modyn {

// Fills into[0, count) with a permutation of 0 … count - 1, each equally likely: numbers are sent to random buckets, and each bucket,
// which fits into the cache, is shuffled (Rao 1961, Sandelius 1962). The same seed gives the same order on every machine, with any number of
// threads. Throws InvalidArgument if the seed is all zero or there are 2^40 numbers or more.
void permutation(const Seed& seed, std::size_t count, std::int64_t* into, std::size_t threads);

}  // namespace modyn
