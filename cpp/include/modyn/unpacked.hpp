// Compressed files with unpacked copies in storage: their names, and the paths of the copies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace modyn {

// Endings of compressed files, which follow the ending of their kind.
constexpr std::string_view packed_endings[] = {".gz", ".zst", ".bz2"};

// The name without the ending of a compressed file; the name itself if it has none.
std::string_view without_packed_ending(std::string_view name);

// Returns the path of the unpacked copy of a compressed file below `folder`, under the file's own name. `path`: in the dataset's folder. `size`,
// `tail`: values at the time of indexing, so that different content has a different copy.
std::string unpacked_copy(const std::string& folder, std::string_view path, std::int64_t size, std::int64_t tail);

}  // namespace modyn
