#include "models/families/registry.h"

#include "models/families/captured.h"
#include "models/families/convnet.h"
#include "models/families/gpt.h"
#include "models/families/mlp.h"
#include "models/families/sequential.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

/// Far above any width, and so small that sums and small multiples of sizes fit 64 bits.
constexpr std::int64_t kMostSize = std::int64_t{1} << 48U;

template <class... Configs>
void add_all(Registry<ModelFamilyKind>& all) {
  (all.add<Configs>(Configs::kName,
                    [](const Configs& config, const ModelSite& site) { return expand(config, site); }),
   ...);
}

}  // namespace

Registry<ModelFamilyKind>& ModelFamilyKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<ModelFamilyKind>([](Registry<ModelFamilyKind>& added) {
    add_all<MlpConfig, ConvnetConfig, GptConfig, SequentialConfig>(added);
    // A run may go on with the folder elsewhere: the model's fingerprint has the graphs' hashes.
    added.add<CapturedConfig>(
        CapturedConfig::kName,
        [](const CapturedConfig& config, const ModelSite& site) { return expand(config, site); },
        {.location_keys = {"path", "weights"}});
    // What it expands to is a kind of layer that layers/ does not know.
    layers().extend([](Registry<LayerKind>& kinds) {
      kinds.add<CapturedLayerSpec>(
          CapturedLayerSpec::kName,
          [](const CapturedLayerSpec& spec, const LayerSite& site) { return make_layer(spec, site); });
    });
  });
  return all;
}

void describe(Fields& f, ModelConfig& c) {
  f.registered(
      "family", c.family,
      "mlp, convnet, gpt, sequential: a list of layers, or captured: a folder made from a PyTorch model");
}

void ModelSite::require_numbers(const std::string& family) const {
  if (sample.dtype == at::kLong) {
    throw InputError(
        place, fmt::format("{} takes samples of floating-point numbers, and the inputs of this data are "
                           "whole ones: use gpt if they are tokens, or store them as float32 ones, as "
                           "array.astype('<f4') makes",
                           family));
  }
  if (sample.classes < 1) throw InputError(place, "the data does not say how many outputs the model needs");
}

void ModelSite::require_size(std::int64_t size, const std::string& key) const {
  if (size >= 1 && size <= kMostSize) return;
  throw InputError({place.file, fmt::format("{}/{}", place.pointer, key)},
                   fmt::format("expected a number from 1 to {}, found {}", kMostSize, size));
}

void ModelSite::require_sizes(const std::vector<std::int64_t>& sizes, const std::string& key) const {
  for (std::size_t i = 0; i < sizes.size(); ++i) require_size(sizes[i], fmt::format("{}/{}", key, i));
}

}  // namespace stagecraft
