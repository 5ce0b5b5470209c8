#include "stagecraft/engine/metrics/manifest.h"

#include "stagecraft/base/json.h"

#include <fmt/format.h>

#include <set>

namespace stagecraft {

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestName;
  auto manifest = json::read_file<Manifest>(path);
  std::set<std::string> names;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    if (names.insert(manifest.files[i].name).second) continue;
    throw InputError({path, fmt::format("/files/{}/name", i)},
                     fmt::format("{} is listed twice", json::brief(Json(manifest.files[i].name))));
  }
  return manifest;
}

}  // namespace stagecraft
