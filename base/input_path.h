#pragma once

// Paths that a config names. They begin at the folder in which the command is started, as in every shell.

#include "base/error.h"

#include <string>

namespace stagecraft {

/// What is said of a path at which nothing is: the whole path, and where a file of that name lies beside the config.
[[nodiscard]] std::string nothing_at(const std::string& path, const std::string& config);

/// Throws InputError at `place` where nothing is at `path`. `place.file` is the config.
void require_there(const std::string& path, const InputPlace& place);

/// What `read` returns, which reads what `place`, a key of a config, names. Its InputErrors, which name the file,
/// get that key in front: "run.json: /model/path: tiny/manifest.json: not valid JSON: ...".
template <class Read>
decltype(auto) read_at_key(const InputPlace& place, const Read& read) {
  try {
    return read();
  } catch (const InputError& error) {
    throw InputError(place, error.what());
  }
}

}  // namespace stagecraft
