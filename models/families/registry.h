#pragma once

// Model families: what `{"family": "gpt", ...}` stands for when written out as a list of layers. Built-in and
// added ones:
//
//   model_families().add<LlamaSettings>("llama", expand_llama);

#include "base/registry.h"
#include "models/captured/compiled/compiled_for.h"
#include "models/layers/registry.h"
#include "models/losses/loss.h"
#include "models/tensors/sample.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// A model's layers.
struct LayerList {
  std::string name;               ///< of the model: "gpt 4x128"
  std::vector<LayerSpec> layers;  ///< each with its name
  double linear_deviation = 0;    ///< as in LayerSite
  bool in_config = false;         ///< layer i stands in the config itself, at `layers`/i: errors point there
  std::vector<BatchField> fields{};     ///< of the batch, that layers and `loss` read
  std::shared_ptr<const Loss> loss{};   ///< that the model brings; null: none
  std::vector<std::int64_t> shorter{};  ///< as in Model
  std::string why_no_loss{};  ///< what the data lack for the one that it would bring; empty: it has none
  std::string note{};         ///< as in Model
  std::optional<CompiledFor> compiled_for{};  ///< likewise
};

/// What a family is made for.
struct ModelSite {
  const SampleSpec& sample;
  InputPlace place;  ///< the config's /model

  /// Throws InputError unless samples are numbers and the data says how many outputs a model needs.
  void require_numbers(const std::string& family) const;
  /// Throws InputError unless it is at least 1 and so small that sums of sizes fit 64 bits.
  void require_size(std::int64_t size, const std::string& key) const;
  void require_sizes(const std::vector<std::int64_t>& sizes, const std::string& key) const;
};

/// Makes a list in which every layer has a name. Throws InputError where the family cannot take such samples.
struct ModelFamilyKind {
  using Site = ModelSite;
  using Product = LayerList;
  static constexpr const char* kWhat = "model family";
  static Registry<ModelFamilyKind>& registry();
};
[[nodiscard]] inline Registry<ModelFamilyKind>& model_families() { return ModelFamilyKind::registry(); }

/// The `model` part of a config.
struct ModelConfig {
  Named<ModelFamilyKind> family;
};
void describe(Fields& f, ModelConfig& c);

}  // namespace stagecraft
