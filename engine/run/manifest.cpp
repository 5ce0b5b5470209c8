#include "engine/run/manifest.h"

namespace stagecraft {

Manifest read_manifest(const std::string& checkpoint) {
  return json::read_file<Manifest>(checkpoint + "/" + kManifestName);
}

}  // namespace stagecraft
