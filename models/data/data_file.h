#pragma once

// Data files, read whole into memory.

#include "schedules/base/error.h"

#include <string>

namespace stagecraft {

/// A data file that cannot be used: the message names the config's key (`place`), the data file and what is
/// wrong with it.
[[nodiscard]] InputError data_file_error(const InputPlace& place, const std::string& path,
                                         const std::string& what);

/// `directory/name`, or `directory/name.gz` where only that exists. Throws InputError that says how to fetch
/// the data (`fetch`: "scripts/fetch_data.sh --text data") when neither does.
[[nodiscard]] std::string find_data_file(const std::string& path, const std::string& fetch,
                                         const InputPlace& place);

/// All bytes of a plain file, or of a gzip file uncompressed. Throws InputError: unreadable, truncated or
/// corrupt gzip.
[[nodiscard]] std::string read_data_file(const std::string& path, const InputPlace& place);

}  // namespace stagecraft
