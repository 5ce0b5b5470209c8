#pragma once

// Data files, plain or compressed with gzip, read from their beginning through storage().

#include "base/error.h"
#include "base/storage.h"

#include <cstdint>
#include <memory>
#include <string>

namespace stagecraft {

/// A data file that cannot be used: the message names the config's key (`place`), the data file and what is
/// wrong with it.
[[nodiscard]] InputError data_file_error(const InputPlace& place, const std::string& path,
                                         const std::string& what);

/// `directory/name`, or `directory/name.gz` where only that exists. Throws InputError that says how to fetch
/// the data (`fetch`: "scripts/fetch_data.sh --text data"; "": nothing to say) when neither does.
[[nodiscard]] std::string find_data_file(const std::string& path, const std::string& fetch,
                                         const InputPlace& place);

/// One data file from its first byte to its last, uncompressed where it is a gzip file (by its contents).
class DataFile {
 public:
  /// Throws InputError: unreadable, or a name in .gz for something else.
  DataFile(const std::string& path, const InputPlace& place);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  /// Up to `bytes` more, put behind `text`; fewer only at the end. Memory grows with what comes, to at most one
  /// and a half times `bytes` beside what `text` had. Throws InputError: truncated or corrupt gzip, an error
  /// of the disk.
  void read_onto(std::string& text, std::uint64_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What a data set may take.
struct DataLimit {
  std::uint64_t bytes = 0;
  std::string words;  ///< "half of what is free: 1.2 GiB are free of memory.max of cgroup /job (2.0 GiB)"
};

/// All bytes. Throws InputError like DataFile, and for more than `most`, of which none are kept: a small gzip
/// file can hold any number.
[[nodiscard]] std::string read_data_file(const std::string& path, const InputPlace& place,
                                         const DataLimit& most);

/// One part in `parts` of the memory that this process can have now, whatever limits it
/// (base/machine_memory.h).
[[nodiscard]] DataLimit share_of_memory(int parts = 2);

/// The first bytes of a file as it lies there, as known_format wants them. Empty where it cannot be read.
[[nodiscard]] std::string beginning_of(const std::string& path);

}  // namespace stagecraft
