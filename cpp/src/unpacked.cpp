#include "modyn/unpacked.hpp"

#include "modyn/checksum.hpp"

namespace modyn {

std::string_view without_packed_ending(std::string_view name) {
  for (const auto ending : packed_endings) {
    if (name.size() > ending.size() && name.substr(name.size() - ending.size()) == ending) return name.substr(0, name.size() - ending.size());
  }
  return name;
}

std::string unpacked_copy(const std::string& folder, std::string_view path, std::int64_t size, std::int64_t tail) {
  Checksum checksum;
  checksum.add(path.data(), path.size());
  const auto slash = path.rfind('/');
  const std::string name(slash == std::string_view::npos ? path : path.substr(slash + 1));
  return folder + "/" + std::to_string(checksum.value()) + "-" + std::to_string(size) + "-" + std::to_string(tail) + "/" + name;
}

}  // namespace modyn
