#include "stagecraft/engine/metrics/manifest.h"

#include "stagecraft/base/json.h"

namespace stagecraft {

Manifest read_manifest(const std::string& checkpoint) {
  return json::read_file<Manifest>(checkpoint + "/" + kManifestName);
}

}  // namespace stagecraft
