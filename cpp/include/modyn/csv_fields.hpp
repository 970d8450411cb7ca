// Reorders the fields of CSV rows: files of a dataset may have the same columns in different orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace modyn {

// Reorders the fields of rows in place. As for `CsvIndexer`, a quote counts only at the start of a field. Not safe to share between threads.
class FieldReorderer {
 public:
  // Field i of a reordered row is the former field `order[i]`. Throws InvalidArgument unless `order` holds each of 0 to n - 1 once.
  FieldReorderer(std::vector<std::int64_t> order, char separator, std::optional<char> quote);

  // Reorders a row of `size` bytes without its line break; the size stays. Returns the number of its fields. If this is not the size of the
  // order, the row stays unchanged.
  std::size_t reorder(char* row, std::size_t size);

 private:
  std::vector<std::int64_t> order_;
  char separator_;
  std::optional<char> quote_;
  std::vector<std::size_t> ends_;  // of the fields of the current row
  std::string copy_;
};

}  // namespace modyn
