#pragma once

// A model captured from PyTorch: a folder with a manifest, graphs and weights
// (docs/reference/model_folder.md), read strictly and held in memory.

#include "models/captured/format/value_type.h"
#include "models/captured/format/weight_files.h"
#include "models/captured/replay/replay.h"
#include "models/losses/loss.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::captured {

/// A value of the bundle behind a layer.
struct ValueBehind {
  ValueType type;
  bool made = true;       ///< by the layer; else it passes it by
  std::size_t index = 0;  ///< of the graph's outputs, or of the values of the bundle before the layer
};

/// A layer as the manifest says it. Layers with equal graphs share one.
struct FolderLayer {
  std::string name;
  std::vector<ValueType> before;    ///< the bundle before it
  std::vector<std::size_t> reads;   ///< of it, what the graph's inputs are
  std::vector<ValueBehind> behind;  ///< the bundle behind it
  std::shared_ptr<const Replay> replay;
  std::vector<std::string> parameters, buffers,
      constants;                    ///< names of weights; parameters of several are tied
  std::vector<std::string> fields;  ///< of the batch, as the graph has them
};

/// A field of the batch that layers or the loss read besides the model's input.
struct FolderField {
  std::string name;
  ValueType type;                   ///< of a micro-batch: its first size is b
  std::optional<std::string> from;  ///< the data set's field, where nobody says otherwise
  std::optional<double> fill;       ///< of all entries, where the data set has no such field
};

/// What micro-batches weigh: entries of a field, from `from` on in its last dimension, but `ignore`.
struct FolderUnits {
  std::string field;
  std::int64_t ignore = 0;
  std::int64_t from = 0;
  friend bool operator==(const FolderUnits&, const FolderUnits&) = default;
};

struct FolderLoss {
  std::shared_ptr<const Replay> replay;  ///< from the model's output to one number, and to the terms
  std::vector<std::string> fields, constants;
  std::vector<std::string> terms;  ///< as in Loss: the graph makes one number of each behind the loss
  Reduction reduction = Reduction::mean;
  std::optional<FolderUnits> units;  ///< absent: samples
  bool of_whole_batch = false;       ///< as in Loss
};

struct ModelFolder {
  std::string path;
  std::string name;
  ValueType input, output;
  std::int64_t least_samples = 1;  ///< the smallest micro-batch that the capture compared with PyTorch
  /// What did not equal eager PyTorch when it was captured: "59 of 62 gradients are equal"; empty: nothing, or
  /// nothing was compared.
  std::string differs;
  std::vector<FolderField> fields;
  std::vector<FolderLayer> layers;
  std::optional<FolderLoss> loss;
  /// The same model for samples that are cut to a length, by that: layers with the same weights, of other
  /// graphs and constants.
  std::map<std::int64_t, std::shared_ptr<const ModelFolder>> shorter;
  std::shared_ptr<const CompiledFolder> compiled;  ///< null: not asked for
  ModelWeights weights;                            ///< of what layers name, and of `untrained`
  /// What no layer trains: parameters without a gradient, buffers that are constants. An export takes them along.
  std::map<std::string, ValueType> untrained;
  /// ParameterSpec::memory_order by name, of those that have one.
  std::map<std::string, std::vector<std::int64_t>> memory_orders;
  /// ParameterSpec::place by name, where that is not the order of layers.
  std::map<std::string, std::int64_t> places;
  std::map<std::string, std::string>
      same_as;  ///< further names of tensors; those of copies, which layers name
};

/// Throws InputError with file and JSON pointer for whatever does not follow the format: unknown keys, layers
/// that do not fit together, weights that are missing or of another type, and all that read_graph refuses.
/// `weights`: a safetensors file or a folder with one to take the weights from; empty: the model folder, which
/// may be without, as long as nobody asks for them. `compiled`: whether to load its native code, too.
[[nodiscard]] std::shared_ptr<const ModelFolder> read_model_folder(const std::string& path,
                                                                   const std::string& weights = "",
                                                                   UseCompiled compiled = UseCompiled::off);

/// Reads a folder once, however many models are made of it. Copies share what was read. Any thread.
class FolderReader {
 public:
  [[nodiscard]] std::shared_ptr<const ModelFolder> read(const std::string& path,
                                                        const std::string& weights = "",
                                                        UseCompiled compiled = UseCompiled::off) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_ = make_shared();
  static std::shared_ptr<Shared> make_shared();
};

}  // namespace stagecraft::captured
