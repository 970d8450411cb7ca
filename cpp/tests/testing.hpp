// Helpers that several tests use.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/gather.hpp"

// A folder that is removed after the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "modyn-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string at(const std::string& name) const { return (path_ / name).string(); }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(at(name), std::ios::binary) << content;
    return at(name);
  }

 private:
  std::filesystem::path path_;
};

// Returns the error of type `Error` that `run` must throw.
template <typename Error, typename Run>
Error thrown_by(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error;
  }
  FAIL("nothing was thrown");
  throw std::logic_error("not reached");
}

// The result of a gather of `request`.
inline std::string gathered(const modyn::GatherRequest& request, modyn::FileCache& cache, std::size_t threads) {
  std::vector<std::int64_t> bounds(request.count + 1);
  modyn::gather_bounds(request, bounds.data());
  std::string data(static_cast<std::size_t>(bounds.back()), '?');
  modyn::gather(request, bounds.data(), reinterpret_cast<std::uint8_t*>(data.data()), cache, threads);
  return data;
}

// Records of some files. `stamps` are those of the first files, which were indexed with them.
struct Records {
  std::vector<std::string> paths;
  std::vector<std::uint32_t> files{};
  std::vector<std::int64_t> offsets{};
  std::vector<std::int64_t> lengths{};
  std::vector<modyn::FileStamp> stamps{};
  bool may_grow = false;

  void add(std::uint32_t file, std::int64_t offset, std::int64_t length) {
    files.push_back(file);
    offsets.push_back(offset);
    lengths.push_back(length);
  }

  std::string gather(std::size_t threads, modyn::FileCache& cache) const {
    modyn::PathTable table("", may_grow);
    table.append(paths);
    std::vector<std::int64_t> ids, sizes, times;
    for (const modyn::FileStamp& stamp : stamps) {
      ids.push_back(static_cast<std::int64_t>(ids.size()));
      sizes.push_back(stamp.size);
      times.push_back(stamp.mtime_ns);
    }
    table.restamp({ids.data(), sizes.data(), times.data(), ids.size(), nullptr});
    return gathered({table, files.data(), offsets.data(), lengths.data(), 0, files.size()}, cache, threads);
  }

  std::string gather(std::size_t threads) const {
    modyn::FileCache cache(3);
    return gather(threads, cache);
  }
};
