// For each candidate, the total decrease of the distances between rows and a chosen set if it is chosen next. The gains are updated as the set
// grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace modyn {

// The n rows are also the candidates: gain(j) = sum over rows i of weight_i * max(0, nearest_i - distance(i, j)), where nearest_i is the
// distance from row i to its nearest chosen candidate. Exact up to rounding. When nearest_i falls, only candidates that are nearer to row i than
// the old value lose gain, and only candidates that are nearer than the new value can lose gain again. Their number falls with each choice.
// When at most `most_near` of them remain, their distances are kept, and the other distances of row i are never needed again. So the caller
// computes the distances of all pairs only a few times, a block of rows at a time. Memory: 8 * n * most_near bytes.
class NearestGains {
 public:
  // `first` (n): gains of the first choice, which depend on the cost of an empty set. Throws InvalidArgument.
  NearestGains(const float* weights, const double* first, std::size_t n, std::size_t most_near);

  std::size_t size() const { return nearest_.size(); }
  const std::vector<double>& gains() const { return gains_; }
  // Infinite before the first choice.
  const std::vector<float>& nearest() const { return nearest_; }

  // Chooses the candidate with these distances (n) to all rows. Returns the rows, ascending, whose distances must be passed to `update_rows`.
  std::vector<std::int64_t> choose(const float* distances);

  // `distances`: (num_rows, n), from the rows that `choose` returned to all candidates. `nearest`: (num_rows), their distances to the nearest
  // chosen candidate. Throws InvalidArgument for a row that does not exist.
  void update_rows(const std::int64_t* rows, std::size_t num_rows, const float* distances, const float* nearest);

 private:
  void update_kept(std::size_t row, float nearest);
  void lower_gains(const std::int64_t* rows, std::size_t num_rows, const float* distances, const float* nearest);
  void keep_near(std::size_t row, const float* distances);

  std::size_t most_near_;
  std::vector<float> weights_;
  std::vector<double> gains_;
  std::vector<float> nearest_;
  bool any_chosen_ = false;
  std::vector<std::uint32_t> near_candidates_;  // near candidates of the row that is being counted
  std::vector<std::int64_t> num_kept_;  // -1: the row keeps no distances yet
  // Row i has space from i * most_near on. Uninitialised: pages that are never written take no memory.
  std::unique_ptr<std::uint32_t[]> kept_candidates_;
  std::unique_ptr<float[]> kept_distances_;
};

}  // namespace modyn
