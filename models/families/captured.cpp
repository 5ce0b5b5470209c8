#include "stagecraft/models/families/captured.h"

#include "stagecraft/models/captured/captured_layer.h"
#include "stagecraft/models/layers/functional.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

/// The run's precision is not known yet: a layer compares it in the dry pass.
bool takes(const captured::ValueType& input, const SampleSpec& sample) {
  if ((sample.dtype == at::kLong) != (input.dtype == at::kLong)) return false;
  std::vector<std::int64_t> two = sample.shape;
  two.insert(two.begin(), 2);
  return input.samples_of(two) == 2;
}

}  // namespace

void describe(Fields& f, CapturedConfig& c) {
  f.required("path", c.path, "model folder that stagecraft-capture made", json::non_empty());
  f.optional("weights", c.weights,
             "safetensors file or folder of Hugging Face to start from (default: the model folder's)");
}

LayerList expand(const CapturedConfig& config, const ModelSite& site) {
  const auto folder = config.reader.read(config.path, config.weights);
  if (!takes(folder->input, site.sample)) {
    throw InputError(
        {site.place.file, site.place.pointer + "/path"},
        fmt::format("{} was captured for {}, this data has {} of shape {}, without the samples' own "
                    "dimension",
                    config.path, folder->input.text(), site.sample.dtype == at::kLong ? "tokens" : "numbers",
                    functional::shape_text(site.sample.shape)));
  }
  LayerList list;
  list.name = folder->name;
  for (const captured::FolderLayer& layer : folder->layers) {
    list.layers.push_back(
        {CapturedLayerSpec{config.path, layer.name, config.weights, config.reader}, layer.name});
  }
  return list;
}

}  // namespace stagecraft
