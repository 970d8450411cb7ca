#include "modyn/sample_index.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

constexpr std::size_t kTableEntriesASlot = 4;
// Limits the places to 14 MB: 250,000 files of rows of a fixed size.
constexpr std::size_t kMostPlaces = std::size_t{1} << 18;

// The value of run `number` at `row`.
std::uint64_t value_at(const Runs& runs, std::size_t number, std::int64_t row) {
  return static_cast<std::uint64_t>(runs.values[number]) +
         static_cast<std::uint64_t>(runs.strides[number]) * static_cast<std::uint64_t>(row - runs.starts[number]);
}

}  // namespace

std::vector<Place> find_places(const std::vector<SegmentView>& segments) {
  std::vector<Place> places;
  for (std::size_t segment = 0; segment < segments.size(); ++segment) {
    const SegmentView& view = segments[segment];
    const std::int64_t num_rows = view.end_key - view.first_key;
    const Runs files = view.file_ids.to_runs(num_rows), offsets = view.offsets.to_runs(num_rows);
    if (files.starts.empty() || offsets.starts.empty()) return {};
    const auto end_of = [num_rows](const Runs& runs, std::size_t number) {
      return number + 1 < runs.starts.size() ? runs.starts[number + 1] : num_rows;
    };
    std::size_t file = 0, offset = 0;
    for (std::int64_t row = 0; row < num_rows;) {
      if (places.size() == kMostPlaces) return {};
      const std::int64_t end = std::min(end_of(files, file), end_of(offsets, offset));
      places.push_back({view.first_key + row, view.first_key + end, value_at(files, file, row), static_cast<std::uint64_t>(files.strides[file]),
                        value_at(offsets, offset, row), static_cast<std::uint64_t>(offsets.strides[offset]),
                        static_cast<std::uint32_t>(segment)});
      file += static_cast<std::size_t>(end == end_of(files, file));
      offset += static_cast<std::size_t>(end == end_of(offsets, offset));
      row = end;
    }
  }
  return places;
}

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
  // One comparison without a branch, because the branch could not be predicted. An entry with a single slot compares that slot with itself.
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
  places_ = find_places(segments);
  places_are_even_ = !places_.empty();
  for (std::size_t i = 0; !places_are_even_ && i < segments.size(); ++i) {
    places_.push_back({segments[i].first_key, segments[i].end_key, 0, 0, 0, 0, static_cast<std::uint32_t>(i)});
  }
  std::vector<std::int64_t> starts(places_.size());
  std::transform(places_.begin(), places_.end(), starts.begin(), [](const Place& place) { return place.first_key; });
  place_slots_ = Slots(std::move(starts));
  const auto is_common = [&](const Column& lengths) { return lengths.is_constant() && lengths.at(0) == lengths_[0].at(0); };
  if (!lengths_.empty() && std::all_of(lengths_.begin(), lengths_.end(), is_common)) common_length_ = lengths_[0].at(0);
}

bool SampleIndex::look_up(const std::int64_t* keys, std::size_t count, const Answers& answers) const {
  if (count == 0) return true;
  if (slots_.size() == 0) return false;
  Block block;
  for (std::size_t start = 0; start < count; start += kBlock) {
    const std::size_t size = std::min(kBlock, count - start);
    const auto answer = [&](const std::vector<Column>& columns, auto* into) {
      if (into != nullptr) read(columns, block, size, into + start);
    };
    const auto by_place = [&](auto* into) { return places_are_even_ && into != nullptr ? into + start : nullptr; };
    if (!find(keys + start, size, block, by_place(answers.file_ids), by_place(answers.offsets))) return false;
    if (!places_are_even_) {
      answer(file_ids_, answers.file_ids);
      answer(offsets_, answers.offsets);
    }
    answer(lengths_, answers.lengths);
    answer(labels_, answers.labels);
    answer(timestamps_, answers.timestamps);
  }
  return true;
}

bool SampleIndex::find(const std::int64_t* keys, std::size_t count, Block& block, std::uint32_t* file_ids, std::int64_t* offsets) const {
  bool known = true;
  std::size_t at = block.last;
  block.one_segment = true;
  std::uint32_t segment = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t key = keys[i];
    if (key < places_[at].first_key || key >= places_[at].end_key) {
      if (key < places_[0].first_key) return false;
      at = place_slots_.find(key);
      known = known && key < places_[at].end_key;
    }
    const Place& place = places_[at];
    const std::uint64_t row = place.row(key);
    if (file_ids != nullptr) file_ids[i] = static_cast<std::uint32_t>(place.file_id + place.file_stride * row);
    if (offsets != nullptr) offsets[i] = static_cast<std::int64_t>(place.offset + place.offset_stride * row);
    block.one_segment = block.one_segment && (i == 0 || place.segment == segment);
    segment = place.segment;
    block.slots[i] = segment;
    block.rows[i] = key - slots_.start(segment);
  }
  block.last = at;
  return known;
}

template <typename T>
void SampleIndex::read(const std::vector<Column>& columns, const Block& block, std::size_t count, T* into) const {
  if (block.one_segment) {
    columns[block.slots[0]].read(block.rows.data(), count, into);
  } else {
    for (std::size_t i = 0; i < count; ++i) into[i] = static_cast<T>(columns[block.slots[i]].at(block.rows[i]));
  }
}

void SampleIndex::contains(const std::int64_t* keys, std::size_t count, bool* found) const {
  std::fill_n(found, count, false);
  if (slots_.size() == 0) return;
  std::size_t slot = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (keys[i] < slots_.start(0)) continue;
    if (keys[i] < slots_.start(slot) || keys[i] >= end_keys_[slot]) slot = slots_.find(keys[i]);
    found[i] = keys[i] < end_keys_[slot];
  }
}

}  // namespace modyn
