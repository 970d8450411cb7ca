#include "modyn/sample_index.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

// Keys that are looked up together: their slots and rows stay in the first cache while each column is read for all of them.
constexpr std::size_t kBlock = 256;
constexpr std::size_t kTableEntriesASlot = 4;

}  // namespace

Slots::Slots(std::vector<std::int64_t> starts) : starts_(std::move(starts)) {
  if (starts_.empty()) return;
  const std::uint64_t span = distance(starts_.back());
  while ((span >> shift_) >= kTableEntriesASlot * starts_.size()) ++shift_;
  table_.resize((span >> shift_) + 2);
  std::size_t slot = 0;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    const std::uint64_t begin = static_cast<std::uint64_t>(i) << shift_;
    while (slot + 1 < starts_.size() && distance(starts_[slot + 1]) <= begin) ++slot;
    table_[i] = static_cast<std::uint32_t>(slot);
  }
  table_.back() = static_cast<std::uint32_t>(starts_.size() - 1);
}

std::size_t Slots::find(std::int64_t number) const {
  const std::size_t entry = std::min<std::uint64_t>(distance(number) >> shift_, table_.size() - 2);
  std::size_t slot = table_[entry];
  const std::size_t last = table_[entry + 1];
  if (last - slot > 1) {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin() + static_cast<std::ptrdiff_t>(slot) + 1,
                                                     starts_.begin() + static_cast<std::ptrdiff_t>(last) + 1, number) -
                                    starts_.begin()) - 1;
  }
  // One comparison without a branch, which could not be foreseen; of an entry of one slot it compares that slot with itself.
  return slot + static_cast<std::size_t>(starts_[last] <= number) * (last - slot);
}

SampleIndex::SampleIndex(const std::vector<SegmentView>& segments) {
  std::vector<std::int64_t> first_keys;
  for (const SegmentView& segment : segments) {
    if (segment.first_key >= segment.end_key) throw InvalidArgument("a segment without keys");
    if (!end_keys_.empty() && segment.first_key < end_keys_.back()) {
      throw InvalidArgument("two segments hold key " + std::to_string(segment.first_key));
    }
    first_keys.push_back(segment.first_key);
    end_keys_.push_back(segment.end_key);
    file_ids_.push_back(segment.file_ids);
    offsets_.push_back(segment.offsets);
    lengths_.push_back(segment.lengths);
    labels_.push_back(segment.labels);
    timestamps_.push_back(segment.timestamps);
  }
  slots_ = Slots(std::move(first_keys));
  const auto is_common = [&](const Column& lengths) { return lengths.is_constant() && lengths.at(0) == lengths_[0].at(0); };
  if (!lengths_.empty() && std::all_of(lengths_.begin(), lengths_.end(), is_common)) common_length_ = lengths_[0].at(0);
}

bool SampleIndex::look_up(const std::int64_t* keys, std::size_t count, const Answers& answers) const {
  if (count == 0) return true;
  if (slots_.size() == 0) return false;
  std::array<std::uint32_t, kBlock> slots;
  std::array<std::int64_t, kBlock> rows;
  std::size_t slot = 0;
  for (std::size_t start = 0; start < count; start += kBlock) {
    const std::size_t size = std::min(kBlock, count - start);
    bool one_segment = true, known = true;
    for (std::size_t i = 0; i < size; ++i) {
      const std::int64_t key = keys[start + i];
      if (key < slots_.start(slot) || key >= end_keys_[slot]) {
        if (key < slots_.start(0)) return false;
        const std::size_t other = slots_.find(key);
        one_segment = one_segment && (i == 0 || other == slot);
        slot = other;
        known = known && key < end_keys_[slot];
      }
      slots[i] = static_cast<std::uint32_t>(slot);
      rows[i] = key - slots_.start(slot);
    }
    if (!known) return false;
    const auto answer = [&](const std::vector<Column>& columns, auto* into) {
      if (into != nullptr) read(columns, slots.data(), rows.data(), size, one_segment, into + start);
    };
    answer(file_ids_, answers.file_ids);
    answer(offsets_, answers.offsets);
    answer(lengths_, answers.lengths);
    answer(labels_, answers.labels);
    answer(timestamps_, answers.timestamps);
  }
  return true;
}

template <typename T>
void SampleIndex::read(const std::vector<Column>& columns, const std::uint32_t* slots, const std::int64_t* rows, std::size_t count,
                       bool one_segment, T* into) const {
  if (one_segment) {
    columns[slots[0]].read(rows, count, into);
  } else {
    for (std::size_t i = 0; i < count; ++i) into[i] = static_cast<T>(columns[slots[i]].at(rows[i]));
  }
}

void SampleIndex::contains(const std::int64_t* keys, std::size_t count, bool* found) const {
  if (slots_.size() == 0) {
    std::fill_n(found, count, false);
    return;
  }
  std::size_t slot = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (keys[i] >= slots_.start(0) && (keys[i] < slots_.start(slot) || keys[i] >= end_keys_[slot])) slot = slots_.find(keys[i]);
    found[i] = keys[i] >= slots_.start(slot) && keys[i] < end_keys_[slot];
  }
}

}  // namespace modyn
