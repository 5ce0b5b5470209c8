#include "engine/records/metrics/manifest.h"

#include "base/fingerprint.h"
#include "base/json.h"

#include <fmt/format.h>

#include <set>

namespace stagecraft {
namespace {

constexpr const char* kHash = "hash";

std::string hash_of(Json manifest) {
  manifest.erase(kHash);
  return fingerprint(manifest.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json json = json::write(manifest);
  json[kHash] = hash_of(json);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestName;
  const Json json = json::parse_file(path);
  auto manifest = json::read<Manifest>(json, {path, ""});
  if (manifest.hash != hash_of(json)) {
    throw InputError(
        {path, "/hash"},
        "is not that of the other keys: the file was changed, or is damaged; move the checkpoint "
        "away to go on from an older one");
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    if (names.insert(manifest.files[i].name).second) continue;
    throw InputError({path, fmt::format("/files/{}/name", i)},
                     fmt::format("{} is listed twice", json::brief(Json(manifest.files[i].name))));
  }
  return manifest;
}

}  // namespace stagecraft
