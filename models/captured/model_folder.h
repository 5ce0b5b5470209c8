#pragma once

// A model captured from PyTorch: a folder with a manifest, graphs and weights
// (docs/reference/model_folder.md), read strictly and held in memory.

#include "stagecraft/models/captured/replay.h"
#include "stagecraft/models/captured/value_type.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::captured {

/// A layer as the manifest says it. Layers with equal graphs share one.
struct FolderLayer {
  std::string name;
  std::shared_ptr<const Replay> replay;
  std::vector<std::string> parameters, buffers, constants;  ///< names of weights
};

struct ModelFolder {
  std::string path;
  std::string name;
  ValueType input, output;
  std::int64_t least_samples = 1;  ///< the smallest micro-batch that the capture compared with PyTorch
  std::vector<FolderLayer> layers;
  std::map<std::string, at::Tensor> weights;  ///< on the CPU; nobody writes to them
  bool weights_stored = true;                 ///< false: `weights` has constants alone
};

/// Throws InputError with file and JSON pointer for whatever does not follow the format: unknown keys, layers
/// that do not fit together, weights that are missing or of another type, and all that read_graph refuses.
[[nodiscard]] std::shared_ptr<const ModelFolder> read_model_folder(const std::string& path);

/// Reads a folder once, however many models are made of it. Copies share what was read. Any thread.
class FolderReader {
 public:
  [[nodiscard]] std::shared_ptr<const ModelFolder> read(const std::string& path) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_ = make_shared();
  static std::shared_ptr<Shared> make_shared();
};

}  // namespace stagecraft::captured
