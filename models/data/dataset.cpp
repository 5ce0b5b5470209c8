#include "stagecraft/models/data/dataset.h"

#include "stagecraft/models/data/idx.h"
#include "stagecraft/models/data/synthetic.h"
#include "stagecraft/models/data/text.h"

namespace stagecraft {

namespace {

std::unique_ptr<Dataset> open(const IdxDataConfig& config, const InputPlace& place) {
  return open_idx(config, {place.file, place.pointer + "/path"});
}
std::unique_ptr<Dataset> open(const TextDataConfig& config, const InputPlace& place) {
  return open_text(config, {place.file, place.pointer + "/path"});
}
std::unique_ptr<Dataset> open(const SyntheticDataConfig& config, const InputPlace& place) {
  return open_synthetic(config, place);
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const DataConfig& config, const InputPlace& place) {
  return std::visit([&](const auto& source) { return open(source, place); }, config.source);
}

}  // namespace stagecraft
