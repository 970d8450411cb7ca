#include "modyn/nearest_gains.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

// Number of rows whose losses are summed in float32 before they are added in float64, and number of candidates that are processed at once, which
// fit into the first-level cache.
constexpr std::size_t rows_at_once = 16;
constexpr std::size_t candidates_at_once = 512;
constexpr float unchosen = std::numeric_limits<float>::infinity();

}  // namespace

NearestGains::NearestGains(const float* weights, const double* first, std::size_t n, std::size_t most_near)
    : most_near_(std::min(most_near, n)), weights_(weights, weights + n), gains_(first, first + n), nearest_(n, unchosen), num_kept_(n, -1) {
  if (n >> 32 != 0) throw InvalidArgument("there can be at most 2^32 - 1 candidates, not " + std::to_string(n));
  kept_candidates_.reset(new std::uint32_t[n * most_near_]);
  kept_distances_.reset(new float[n * most_near_]);
}

std::vector<std::int64_t> NearestGains::choose(const float* distances) {
  if (!any_chosen_) std::fill(gains_.begin(), gains_.end(), 0.0);  // `update_rows` sums them again
  any_chosen_ = true;
  std::vector<std::int64_t> rows;
  for (std::size_t row = 0; row < nearest_.size(); ++row) {
    if (!(distances[row] < nearest_[row])) continue;
    if (num_kept_[row] < 0) {
      rows.push_back(static_cast<std::int64_t>(row));
    } else {
      update_kept(row, distances[row]);
    }
  }
  return rows;
}

void NearestGains::update_rows(const std::int64_t* rows, std::size_t num_rows, const float* distances, const float* nearest) {
  const std::size_t n = nearest_.size();
  for (std::size_t i = 0; i < num_rows; ++i) {
    if (rows[i] < 0 || static_cast<std::size_t>(rows[i]) >= n) throw InvalidArgument("there is no row " + std::to_string(rows[i]));
  }
  for (std::size_t first = 0; first < num_rows; first += rows_at_once) {
    lower_gains(rows + first, std::min(rows_at_once, num_rows - first), distances + first * n, nearest + first);
  }
  for (std::size_t i = 0; i < num_rows; ++i) {
    const auto row = static_cast<std::size_t>(rows[i]);
    nearest_[row] = nearest[i];
    keep_near(row, distances + i * n);
  }
}

void NearestGains::lower_gains(const std::int64_t* rows, std::size_t num_rows, const float* distances, const float* nearest) {
  const std::size_t n = nearest_.size();
  for (std::size_t start = 0; start < n; start += candidates_at_once) {
    const std::size_t count = std::min(candidates_at_once, n - start);
    std::array<float, candidates_at_once> losses{};
    for (std::size_t i = 0; i < num_rows; ++i) {
      const auto row = static_cast<std::size_t>(rows[i]);
      const float weight = weights_[row], before = nearest_[row], after = nearest[i];
      const float* const values = distances + i * n + start;
      if (before == unchosen) {
        for (std::size_t j = 0; j < count; ++j) losses[j] -= weight * std::max(0.0F, after - values[j]);
      } else {
        for (std::size_t j = 0; j < count; ++j) losses[j] += weight * std::max(0.0F, before - std::max(values[j], after));
      }
    }
    for (std::size_t j = 0; j < count; ++j) gains_[start + j] -= static_cast<double>(losses[j]);
  }
}

void NearestGains::keep_near(std::size_t row, const float* distances) {
  constexpr std::size_t stride = 64;
  const std::size_t n = nearest_.size();
  const float nearest = nearest_[row];
  near_candidates_.resize(most_near_ + stride);
  std::size_t count = 0;
  for (std::size_t start = 0; start < n; start += stride) {
    const std::size_t end = std::min(start + stride, n);
    for (std::size_t j = start; j < end; ++j) {  // no branch, because it would be mispredicted often
      near_candidates_[count] = static_cast<std::uint32_t>(j);
      count += static_cast<std::size_t>(distances[j] < nearest);
    }
    if (count > most_near_) return;
  }
  std::copy_n(near_candidates_.begin(), count, kept_candidates_.get() + row * most_near_);
  float* const kept = kept_distances_.get() + row * most_near_;
  for (std::size_t k = 0; k < count; ++k) kept[k] = distances[near_candidates_[k]];
  num_kept_[row] = static_cast<std::int64_t>(count);
}

void NearestGains::update_kept(std::size_t row, float nearest) {
  std::uint32_t* const candidates = kept_candidates_.get() + row * most_near_;
  float* const distances = kept_distances_.get() + row * most_near_;
  const auto count = static_cast<std::size_t>(num_kept_[row]);
  const float weight = weights_[row], before = nearest_[row];
  std::size_t left = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const std::uint32_t candidate = candidates[k];
    const float distance = distances[k];
    gains_[candidate] -= static_cast<double>(weight * (before - std::max(distance, nearest)));
    candidates[left] = candidate;
    distances[left] = distance;
    left += static_cast<std::size_t>(distance < nearest);
  }
  num_kept_[row] = static_cast<std::int64_t>(left);
  nearest_[row] = nearest;
}

}  // namespace modyn
