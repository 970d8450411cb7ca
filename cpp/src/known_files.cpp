#include "modyn/known_files.hpp"

#include <algorithm>
#include <functional>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

constexpr std::uint64_t hash_bits = 0xFFFFFFFF00000000;
constexpr std::size_t max_files = 0xFFFFFFFF;

std::uint64_t hashed(std::string_view path) { return std::hash<std::string_view>()(path) & hash_bits; }

std::size_t id_in(std::uint64_t slot) { return static_cast<std::size_t>(slot & ~hash_bits) - 1; }

}  // namespace

void KnownFiles::append(std::string_view path, std::int64_t size, std::int64_t mtime_ns, bool altered, std::int64_t tail) {
  if (ends_.size() >= max_files) throw InvalidArgument("a dataset has at most 2^32 - 1 files");
  text_.append(path);
  ends_.push_back(text_.size());
  sizes_.push_back(size);
  mtimes_ns_.push_back(mtime_ns);
  tails_.push_back(tail);
  altered_.push_back(altered ? 1 : 0);
  if (2 * ends_.size() > slots_.size()) {
    std::vector<std::uint64_t> before(std::max<std::size_t>(64, 2 * slots_.size()), 0);
    before.swap(slots_);
    for (const auto slot : before) {
      if (slot != 0) place(slot);
    }
  }
  place(hashed(path) | ends_.size());
}

void KnownFiles::place(std::uint64_t slot) {
  for (std::size_t at = home(slot);; at = at + 1 == slots_.size() ? 0 : at + 1) {
    const bool same_hash = slots_[at] != 0 && ((slots_[at] ^ slot) & hash_bits) == 0;
    if (slots_[at] == 0 || (same_hash && path(id_in(slots_[at])) == path(id_in(slot)))) {
      slots_[at] = slot;
      return;
    }
  }
}

void KnownFiles::change(std::size_t id, std::int64_t size, std::int64_t mtime_ns, bool altered, std::int64_t tail) {
  sizes_.at(id) = size;
  mtimes_ns_.at(id) = mtime_ns;
  tails_.at(id) = tail;
  altered_.at(id) = altered ? 1 : 0;
}

std::int64_t KnownFiles::find(std::string_view wanted) const {
  if (slots_.empty()) return unknown;
  const std::uint64_t hash = hashed(wanted);
  for (std::size_t at = home(hash); slots_[at] != 0; at = at + 1 == slots_.size() ? 0 : at + 1) {
    if (((slots_[at] ^ hash) & hash_bits) == 0 && path(id_in(slots_[at])) == wanted) return static_cast<std::int64_t>(id_in(slots_[at]));
  }
  return unknown;
}

std::string_view KnownFiles::path(std::size_t id) const {
  const std::uint64_t begin = id == 0 ? 0 : ends_.at(id - 1);
  return std::string_view(text_).substr(begin, ends_.at(id) - begin);
}

bool KnownFiles::any_below(std::string_view folder) const {
  for (std::size_t id = 0; id < size(); ++id) {
    const std::string_view at = path(id);
    if (at.size() > folder.size() && at[folder.size()] == '/' && at.substr(0, folder.size()) == folder) return true;
  }
  return false;
}

}  // namespace modyn
