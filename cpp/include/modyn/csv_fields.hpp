// The fields of rows of CSV in another order: files of one dataset may name the same columns in different orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace modyn {

// Puts the fields of rows in place in another order. As for `CsvIndexer`, a quote counts only at the start of a field. Not safe to share between
// threads.
class FieldReorderer {
 public:
  // Field i of a row becomes what was field `order[i]`. Throws InvalidArgument unless `order` holds each of 0 to n - 1 once.
  FieldReorderer(std::vector<std::int64_t> order, char separator, std::optional<char> quote);

  // Reorders a row of `size` bytes without its line break; it keeps its size. Returns the number of its fields: where they are not as many as the
  // order has, the row is left as it is.
  std::size_t reorder(char* row, std::size_t size);

 private:
  std::vector<std::int64_t> order_;
  char separator_;
  std::optional<char> quote_;
  std::vector<std::size_t> ends_;  // of the fields of the row at hand
  std::string copy_;
};

}  // namespace modyn
