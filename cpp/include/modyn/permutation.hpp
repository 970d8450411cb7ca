// Random orders of many numbers, limited by memory bandwidth instead of cache misses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "modyn/random.hpp"

namespace modyn {

// Fills into[0, count) with a uniformly random permutation of 0 … count - 1. Numbers are sent to random buckets, and each bucket, which fits
// into the cache, is shuffled (Rao 1961, Sandelius 1962). The same seed gives the same order on every machine and with any number of threads.
// Throws InvalidArgument if the seed is all zero or there are 2^40 numbers or more.
void permutation(const Seed& seed, std::size_t count, std::int64_t* into, std::size_t threads);

}  // namespace modyn
