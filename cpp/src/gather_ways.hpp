// The two ways to fetch the records of a request. gather.cpp chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "modyn/gather.hpp"

namespace modyn {

// By pread: the records at `positions` (ascending) of the request, sorted and merged.
void read_records(const GatherRequest& request, std::vector<std::uint32_t> positions, const std::int64_t* bounds, std::uint8_t* into,
                  FileCache& cache, std::size_t threads);

// By copying from maps, where that is the better way.
class MappedRecords {
 public:
  // Chooses the files to map: of small records, several of them a file, in memory already. There may be none.
  MappedRecords(const GatherRequest& request, const std::int64_t* bounds, FileCache& cache);

  bool any() const { return num_mapped_ > 0; }
  // Copies their records. False if a file was cut or changed since; then `into` holds nothing of use.
  bool copy(std::uint8_t* into, std::size_t threads) const;
  // Positions of the records that are not in mapped files.
  std::vector<std::uint32_t> others() const;

 private:
  // A file of the request. Its number here is its slot.
  struct RequestedFile {
    std::uint32_t id;
    std::uint32_t records;
    std::int64_t end;  // of the record that lies farthest
    std::shared_ptr<const File> file;
    std::shared_ptr<const FileMap> map;
    IndexedFile indexed;
  };

  void find_files();
  void map_files(FileCache& cache);
  bool are_resident() const;
  bool are_still_as_indexed() const;

  const GatherRequest& r_;
  const std::int64_t* bounds_;
  std::vector<std::uint32_t> slots_;  // of each record
  std::vector<RequestedFile> files_;
  std::vector<const std::uint8_t*> addresses_;  // of each slot's map; null: not mapped
  std::size_t num_mapped_ = 0;                  // records
};

}  // namespace modyn
