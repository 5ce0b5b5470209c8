#pragma once

// Names of files that come out of files: a manifest, an index. They may send nobody out of their folder.

#include <string_view>

namespace stagecraft {

/// Whether `name` ends in `ending` and can only mean an entry of the folder in which it is looked up: not
/// hidden ("." and ".." are not), no separator, no zero byte, and not longer than file systems take.
[[nodiscard]] bool is_plain_name(std::string_view name, std::string_view ending);

}  // namespace stagecraft
