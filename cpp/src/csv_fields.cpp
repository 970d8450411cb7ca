#include "modyn/csv_fields.hpp"

#include <cstring>
#include <utility>

#include "modyn/errors.hpp"

namespace modyn {

FieldReorderer::FieldReorderer(std::vector<std::int64_t> order, char separator, std::optional<char> quote)
    : order_(std::move(order)), separator_(separator), quote_(quote) {
  std::vector<bool> seen(order_.size());
  for (const std::int64_t field : order_) {
    const auto at = static_cast<std::uint64_t>(field);
    if (at >= seen.size() || seen[at]) throw InvalidArgument("an order of " + std::to_string(seen.size()) + " fields holds each number below that once");
    seen[at] = true;
  }
}

std::size_t FieldReorderer::reorder(char* row, std::size_t size) {
  ends_.clear();
  std::size_t at = 0;
  for (;;) {
    if (quote_ && at < size && row[at] == *quote_) {
      // Moves to the position after the closing quote; a doubled quote does not close the field.
      for (++at; at < size; ++at) {
        if (row[at] != *quote_) continue;
        if (at + 1 == size || row[at + 1] != *quote_) break;
        ++at;
      }
    }
    const void* found = at < size ? std::memchr(row + at, separator_, size - at) : nullptr;
    at = found == nullptr ? size : static_cast<std::size_t>(static_cast<const char*>(found) - row);
    ends_.push_back(at);
    if (found == nullptr) break;
    ++at;
  }
  if (ends_.size() != order_.size()) return ends_.size();
  copy_.assign(row, size);
  char* into = row;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const auto field = static_cast<std::size_t>(order_[i]);
    const std::size_t begin = field == 0 ? 0 : ends_[field - 1] + 1;
    if (i > 0) *into++ = separator_;
    std::memcpy(into, copy_.data() + begin, ends_[field] - begin);
    into += ends_[field] - begin;
  }
  return ends_.size();
}

}  // namespace modyn
