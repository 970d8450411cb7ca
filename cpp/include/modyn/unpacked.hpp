// Compressed files, of which storage keeps unpacked copies: which names are theirs, and where a copy lies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace modyn {

// Endings that a compressed file has behind the ending of its kind.
constexpr std::string_view packed_endings[] = {".gz", ".zst", ".bz2"};

// The name without the ending of a compressed file; the name itself if it has none.
std::string_view without_packed_ending(std::string_view name);

// Where the unpacked copy of a compressed file lies below `folder`, under the file's own name. `path`: in the dataset's folder. `size`, `tail`: with
// which it was indexed; another content has another copy.
std::string unpacked_copy(const std::string& folder, std::string_view path, std::int64_t size, std::int64_t tail);

}  // namespace modyn
