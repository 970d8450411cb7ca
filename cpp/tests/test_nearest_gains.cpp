#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/nearest_gains.hpp"

namespace {

using Floats = std::vector<float>;

// Distances of points on a line, some of which are equal.
class Line {
 public:
  explicit Line(std::size_t n) : places_(n), weights_(n), first_(n) {
    std::uint32_t drawn = 12345;
    for (std::size_t i = 0; i < n; ++i) {
      drawn = drawn * 1664525U + 1013904223U;
      places_[i] = static_cast<float>(drawn >> 22);
      weights_[i] = static_cast<float>(1 + (drawn >> 20) % 3);
    }
    for (std::size_t j = 0; j < n; ++j) first_[j] = gain(j, Floats(n, farthest));
  }

  std::size_t size() const { return places_.size(); }
  const Floats& weights() const { return weights_; }
  const std::vector<double>& first() const { return first_; }

  Floats distances(std::size_t row) const {
    Floats found;
    for (const float place : places_) found.push_back(std::abs(place - places_[row]));
    return found;
  }

  double gain(std::size_t candidate, const Floats& nearest) const {
    double sum = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      sum += static_cast<double>(weights_[i]) * std::max(0.0, static_cast<double>(nearest[i]) - std::abs(static_cast<double>(places_[i]) - places_[candidate]));
    }
    return sum;
  }

  static constexpr float farthest = 2048;

 private:
  Floats places_;
  Floats weights_;
  std::vector<double> first_;
};

void choose(modyn::NearestGains& gains, const Line& line, std::size_t candidate) {
  const Floats distances = line.distances(candidate);
  for (const std::int64_t row : gains.choose(distances.data())) {
    const Floats of_row = line.distances(static_cast<std::size_t>(row));
    gains.update_rows(&row, 1, of_row.data(), &distances[static_cast<std::size_t>(row)]);
  }
}

}  // namespace

TEST_CASE("gains are those of the definition after each choice, for any number of kept entries of a row") {
  const Line line(700);
  for (const std::size_t most_near : {0, 1, 50, 700, 10'000}) {
    modyn::NearestGains gains(line.weights().data(), line.first().data(), line.size(), most_near);
    CHECK(gains.gains() == line.first());
    for (const std::size_t candidate : {350, 3, 699, 3, 120, 121, 122, 500, 11, 650}) {
      choose(gains, line, candidate);
      const Floats nearest = gains.nearest();
      for (std::size_t j = 0; j < line.size(); ++j) CHECK(gains.gains()[j] == doctest::Approx(line.gain(j, nearest)));
    }
  }
}

TEST_CASE("rows are asked for only until the candidates that are nearer fit") {
  const Line line(300);
  modyn::NearestGains all(line.weights().data(), line.first().data(), line.size(), 300);
  CHECK(all.choose(line.distances(7).data()).size() == 300);
  modyn::NearestGains kept(line.weights().data(), line.first().data(), line.size(), 300);
  choose(kept, line, 7);
  CHECK(kept.choose(line.distances(8).data()).empty());
}

TEST_CASE("nothing is nearer than a candidate that was chosen already") {
  const Line line(50);
  modyn::NearestGains gains(line.weights().data(), line.first().data(), line.size(), 0);
  choose(gains, line, 5);
  CHECK(gains.gains()[5] == 0);
  CHECK(gains.choose(line.distances(5).data()).empty());
}

TEST_CASE("a row that does not exist is refused, and no candidates have no gains") {
  const Line line(5);
  modyn::NearestGains gains(line.weights().data(), line.first().data(), line.size(), 5);
  const Floats distances = line.distances(0);
  for (const std::int64_t row : {-1, 5}) CHECK_THROWS_AS(gains.update_rows(&row, 1, distances.data(), distances.data()), modyn::InvalidArgument);
  modyn::NearestGains none(nullptr, nullptr, 0, 5);
  CHECK(none.choose(nullptr).empty());
}
