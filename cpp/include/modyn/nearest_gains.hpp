// How much nearer rows would come to a chosen set with one more candidate, for all candidates, kept while the set grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace modyn {

// Of n rows, which are the candidates as well: gain(j) = sum over rows i of weight_i * max(0, nearest_i - distance(i, j)), where nearest_i is
// the distance from row i to its nearest chosen candidate. Exact but for rounding: when nearest_i falls, only candidates that are nearer to row
// i than the old one lose, and only those that are nearer than the new one can lose again. These become fewer with each choice; once they are
// `most_near` at most, their distances are kept and all others of that row are never needed again. So the distances of all pairs are
// computed a few times by the caller, a block of rows at a time, and never held: 8 * n * most_near bytes are.
class NearestGains {
 public:
  // `first` (n): gains of the first choice, which depend on what nothing chosen costs. Throws InvalidArgument.
  NearestGains(const float* weights, const double* first, std::size_t n, std::size_t most_near);

  std::size_t size() const { return nearest_.size(); }
  const std::vector<double>& gains() const { return gains_; }
  // Infinite before the first choice.
  const std::vector<float>& nearest() const { return nearest_; }

  // Chooses the candidate with these distances (n) to all rows. Returns the rows whose distances must be handed to `update_rows`, ascending.
  std::vector<std::int64_t> choose(const float* distances);

  // `distances`: (num_rows, n), of rows that `choose` asked for to all candidates. `nearest`: (num_rows), what was chosen of them.
  // Throws InvalidArgument for a row that does not exist.
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
  std::vector<std::uint32_t> near_candidates_;  // of one row, while they are counted
  std::vector<std::int64_t> num_kept_;  // -1: the row keeps no distances yet
  // Row i has room from i * most_near on. Uninitialised: pages that are never written take no memory.
  std::unique_ptr<std::uint32_t[]> kept_candidates_;
  std::unique_ptr<float[]> kept_distances_;
};

}  // namespace modyn
