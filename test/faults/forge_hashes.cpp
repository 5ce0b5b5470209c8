// Makes the hashes of changed checkpoints fit, as who means harm would: reads folders, one per line, and answers each with a line.
// Whatever manifest.json has become is taken as it is.

#include "base/error.h"
#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"

#include <exception>
#include <iostream>
#include <string>

namespace {

using stagecraft::Json;

std::string forge(const std::string& checkpoint) {
  const std::string path = checkpoint + "/manifest.json";
  Json manifest = stagecraft::json::parse_file(path);
  if (!manifest.is_object()) return "is no object";
  if (manifest.contains("files") && manifest["files"].is_array()) {
    for (Json& file : manifest["files"]) {
      if (!file.is_object() || !file.contains("name") || !file["name"].is_string()) continue;
      const std::string name = checkpoint + "/" + file["name"].get<std::string>();
      if (name.find('/', checkpoint.size() + 1) != std::string::npos || !stagecraft::is_there(name)) continue;
      const std::string bytes = stagecraft::read_file(name);
      if (file.contains("bytes") && file["bytes"].is_number()) file["bytes"] = bytes.size();
      if (file.contains("hash") && file["hash"].is_string()) file["hash"] = stagecraft::fingerprint(bytes);
    }
  }
  const bool has_hash = manifest.contains("hash");
  manifest.erase("hash");
  const std::string hash =
      stagecraft::fingerprint(manifest.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (has_hash) manifest["hash"] = hash;
  stagecraft::write_json_file(path, manifest);
  return "ok";
}

}  // namespace

int main() {
  for (std::string folder; std::getline(std::cin, folder);) {
    std::string answer;
    try {
      answer = forge(folder);
    } catch (const std::exception& error) {
      answer = error.what();
    }
    std::cout << answer.substr(0, answer.find('\n'))
              << std::endl;  // NOLINT(performance-avoid-endl): somebody waits
  }
}
